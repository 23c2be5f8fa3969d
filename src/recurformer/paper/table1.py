"""Table 1: growth of cache peak and cache size of self-attention with KV-cache and of Mamba, prefill and generation.

l_p is the length of the input, l_g that of the generated tokens, d the model dimension. `EXPONENTS` is not printed:
it is the highest power of a length in each entry, which is what a measured growth exponent is to be compared with.
"""

import pandas as pd

from recurformer.paper.cells import PrintedCell

PRINTED = {
    ("prefill", "attention", "cache_peak"): "O(l_p^2 + l_p · d)",
    ("prefill", "attention", "cache_size"): "O(l_g · d)",  # sic: l_g in the prefill phase
    ("prefill", "mamba", "cache_peak"): "O(l_p · d)",
    ("prefill", "mamba", "cache_size"): "O(d)",
    ("generation", "attention", "cache_peak"): "O(l_g · d)",
    ("generation", "attention", "cache_size"): "O(l_g · d)",
    ("generation", "mamba", "cache_peak"): "O(d)",
    ("generation", "mamba", "cache_size"): "O(d)",
}
EXPONENTS = {
    ("prefill", "attention", "cache_peak"): 2,
    ("prefill", "attention", "cache_size"): 1,
    ("prefill", "mamba", "cache_peak"): 1,
    ("prefill", "mamba", "cache_size"): 0,
    ("generation", "attention", "cache_peak"): 1,
    ("generation", "attention", "cache_size"): 1,
    ("generation", "mamba", "cache_peak"): 0,
    ("generation", "mamba", "cache_size"): 0,
}
MIXER_HEADINGS = {"attention": "Attention (KV-cache)", "mamba": "Mamba"}
QUANTITY_HEADINGS = {"cache_peak": "Cache Peak", "cache_size": "Cache Size"}

CELLS = tuple(
    PrintedCell(
        table=1, row=phase.capitalize(), column=f"{MIXER_HEADINGS[mixer]}, {QUANTITY_HEADINGS[quantity]}",
        printed=printed, quantity=quantity, method=mixer, part=phase,
    )
    for (phase, mixer, quantity), printed in PRINTED.items()
)  # fmt: skip


def growth() -> pd.DataFrame:
    """The eight orders of growth: phase, mixer, quantity, printed, claim, exponent."""
    rows = [(cell.part, cell.method, cell.quantity, cell.printed, cell.id) for cell in CELLS]
    frame = pd.DataFrame(rows, columns=["phase", "mixer", "quantity", "printed", "claim"])
    return frame.assign(exponent=[EXPONENTS[phase, mixer, quantity] for phase, mixer, quantity, *_ in rows])
