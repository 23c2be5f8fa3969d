"""Published shapes of the paper's backbones (and SmolLM2) as plain numbers, for those who build models and those who
only count: the values of the config.json that each model's authors publish. It knows no model.
"""

from typing import Any

MODELS = ("llama2-7b", "qwen2-7b", "qwen2-0.5b", "smollm2-135m")
VALUES: dict[str, tuple[Any, ...]] = {
    "architecture": ("llama", "qwen2", "qwen2", "llama"),
    "hidden_size": (4096, 3584, 896, 576),
    "intermediate_size": (11008, 18944, 4864, 1536),
    "num_hidden_layers": (32, 28, 24, 30),
    "num_attention_heads": (32, 28, 14, 9),
    "num_key_value_heads": (32, 4, 2, 3),
    "vocab_size": (32000, 152064, 151936, 49152),
    "max_position_embeddings": (4096, 131072, 131072, 8192),
    "rms_norm_eps": (1e-5, 1e-6, 1e-6, 1e-5),
    "rope_theta": (10_000.0, 1_000_000.0, 1_000_000.0, 100_000.0),
    "tie_word_embeddings": (False, False, True, True),
    "bos_token_id": (1, 151643, 151643, 1),
    "eos_token_id": (2, 151643, 151643, 2),
    "pad_token_id": (None, None, None, 2),
}
"""Key of the configuration -> its value in each of MODELS."""
PUBLISHED = {name: {key: values[n] for key, values in VALUES.items()} for n, name in enumerate(MODELS)}
