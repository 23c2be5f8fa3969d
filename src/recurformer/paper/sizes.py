"""Sizes of the paper's experiments, for telling a run at its scale from a smaller one."""

HASHHOP_HOPS = 16
"""h_p (appendix B)."""
MQAR_LENGTHS = (128, 256, 512, 1024)
"""Tokens of the tested samples (Figure 4)."""
WINDOWS = {"profile": 1024, "sink": 1024, "contribution": 512, "attention_map": 512}
"""Wikipedia samples behind RA-I (appendix B), Figure 2, Table 5 and Figure 5 (section 4.4)."""
D_CONV, D_STATE, EXPAND = 4, 16, 2
"""The Mamba block (appendix B)."""
LLAMA2_7B_WIDTH, LLAMA2_7B_LAYERS = 4096, 32
"""Published shape of the one backbone whose value heads fill the model's width."""
