"""The hybrid model: retained attention heads and one mixer side by side in a layer (RecurFormer, Algorithm 1)."""
