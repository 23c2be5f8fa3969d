import pytest
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from recurformer.data import IGNORED
from recurformer.data.datasets import item_generator
from tests.one_thread import one_thread

__all__ = ["one_thread"]


class Successors(Dataset):
    """Rows that count upwards from a random token. `stop_at`: the item that interrupts the run."""

    def __init__(self, seed: int = 0, stop_at: int | None = None):
        self.seed, self.stop_at = seed, stop_at

    def __getitem__(self, index):
        if index == self.stop_at:
            raise KeyboardInterrupt
        rng = item_generator(self.seed, index)
        input_ids = torch.from_numpy((rng.integers(32) + torch.arange(12).numpy()) % 32)
        labels = input_ids.clone()
        labels[: rng.integers(1, 9)] = IGNORED
        return {"input_ids": input_ids, "labels": labels}


@pytest.fixture
def make_model():
    def make(seed: int = 0, dropout: float = 0.0) -> LlamaForCausalLM:
        torch.manual_seed(seed)
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        return LlamaForCausalLM(
            LlamaConfig(vocab_size=32, max_position_embeddings=32, attention_dropout=dropout, **sizes)
        )

    return make


@pytest.fixture
def successors():
    return Successors
