"""Find attention heads that look at recent tokens, and choose the ones to replace."""
