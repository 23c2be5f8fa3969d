"""Table 4: longest input, generation quality and cache size at every share beta of replaced heads."""

from recurformer.paper.cells import PrintedCell
from recurformer.paper.names import BACKBONE_LABELS

BETAS = ("0.00", "0.25", "0.50", "0.75", "0.90", "1.00")
ROWS = {"l_m": "l_max", "h_gq": "h_gq", "cs_10k": "cs_10k", "cs_60k": "cs_60k"}
PRINTED = {
    "qwen2-0.5b": {
        "l_m": ("133,120", "135,168", "137,216", "139,264", "142,048", "143,360"),
        "h_gq": ("0.881", "0.846", "0.815", "0.051", "0.000", "0.000"),
        "cs_10k": ("1.0000", "0.7043", "0.4390", "0.3145", "0.0632", "0.0006"),
        "cs_60k": ("1.0000", "0.7035", "0.4375", "0.3130", "0.0626", "0.0001"),
    },
    "llama2-7b": {
        "l_m": ("71,680", "75,080", "78,480", "81,920", "91,800", "94,208"),
        "h_gq": ("0.894", "0.849", "0.861", "0.818", "0.839", "0.000"),
        "cs_10k": ("1.0000", "0.7510", "0.5020", "0.2530", "0.1030", "0.0040"),
        "cs_60k": ("1.0000", "0.7500", "0.5000", "0.2500", "0.1000", "0.0010"),
    },
    "qwen2-7b": {
        "l_m": ("122,880", "125,440", "128,000", "130,560", "132,000", "133,120"),
        "h_gq": ("0.995", "0.987", "0.986", "0.922", "0.913", "0.000"),
        "cs_10k": ("1.0000", "0.6578", "0.3815", "0.5930", "0.1268", "0.0007"),  # sic: 0.5930 at 0.75 exceeds 0.50's
        "cs_60k": ("1.0000", "0.6563", "0.3800", "0.5900", "0.1252", "0.0001"),
    },
}

CELLS = tuple(
    PrintedCell(
        table=4, row=ROWS[quantity], column=f"{BACKBONE_LABELS[model]}, {beta}", printed=printed, quantity=quantity,
        model=model, method="RecurFormer" if float(beta) else "Original Model", beta=float(beta),
    )
    for model, rows in PRINTED.items()
    for quantity, entries in rows.items()
    for beta, printed in zip(BETAS, entries, strict=True)
)  # fmt: skip
