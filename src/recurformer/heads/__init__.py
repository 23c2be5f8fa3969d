"""Which attention heads look at recent tokens, and which of them are replaced."""
