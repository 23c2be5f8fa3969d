"""Sizes of the paper's experiments: they tell a run at its scale from a smaller one."""

from typing import Any

CACHE_LENGTHS = {"cs_10k": 10_240, "cs_60k": 61_440}
"""Quantity -> tokens in the cache (Table 2)."""
D_CONV, D_STATE, EXPAND, DT_RANK = 4, 16, 2, 256
"""The Mamba block (appendix B)."""
LLAMA2_7B_WIDTH, LLAMA2_7B_LAYERS = 4096, 32
"""Published shape of the one backbone whose value heads fill the model's width."""
PYRAMIDINFER_RATIO, PYRAMIDINFER_MINIMUM = 0.7, 32
"""P_reduce and P_min (appendix B)."""
LOCAL_SHARE = 0.1
"""k of equation 1 over the length of a sample: 102 of 1,024 tokens (appendix B)."""
WINDOWS = {"profile": 1024, "sink": 1024, "influence": 1024, "contribution": 512, "attention_map": 512}
"""Wikipedia samples behind RA-I (appendix B), Figures 2 and 1, Table 5 and Figure 5 (section 4.4)."""

_MAMBA = {"mamba_d_conv": D_CONV, "mamba_d_state": D_STATE, "mamba_expand": EXPAND, "mamba_dt_rank": DT_RANK}
_HASHHOP = {"task_form": "text", "task_hops": 16, "task_hash_length": 8, "task_characters": 6144}
SETTINGS: dict[str, dict[str, Any]] = {
    "cache": _MAMBA,
    "complexity": _MAMBA,
    "memory": {**_MAMBA, "memory_gib": 80.0},
    "hashhop": _HASHHOP,
    "baseline": _HASHHOP,
    "mqar": {"hidden_size": 512, "layers": 2, "heads": 8, "kv_heads": 4},
    "profile": {"tokens": 1024, "window": 102},
    "sink": {"shown_tokens": 32},
    "contribution": {"tokens": 256},
    "attention_map": {"tokens": 256},
}
"""Kind of measurement -> what the paper sets (sections 4.1, 4.3, 4.4, appendix B), under the names that our stages have
for it. It sets nothing else: other kinds are at its scale when the models are."""
