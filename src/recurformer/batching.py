"""How many samples go through a model at once where nobody said so."""

# More do not fit a processor's caches: 4,096 made a forward pass slower by a twentieth.
TOKENS = {"cpu": 1024}
TOKENS_ELSEWHERE = 16384


def samples_per_batch(device: str, tokens: int) -> int:
    """As many samples of `tokens` tokens as a device of this type takes well, at least one."""
    return max(TOKENS.get(device, TOKENS_ELSEWHERE) // tokens, 1)
