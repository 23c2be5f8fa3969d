"""The hybrid model: retained attention heads and one Mamba block side by side in a layer (RecurFormer, Algorithm 1)."""
