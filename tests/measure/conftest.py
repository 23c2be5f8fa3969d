import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from recurformer.data.backbones import byte_tokenizer
from recurformer.data.sizes import BYTE_VOCABULARY
from recurformer.model.convert import convert
from tests.one_thread import one_thread

__all__ = ["one_thread"]


@pytest.fixture
def make_tokenizer():
    """One token a byte. `begins`: put <bos> before a text unasked, as Llama's tokenizer does."""

    def make(begins: bool = False, bos: bool = True) -> PreTrainedTokenizerFast:
        tokenizer = byte_tokenizer()
        if begins:
            tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
                single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", tokenizer.bos_token_id)]
            )
        if not bos:
            tokenizer.bos_token = None
        return tokenizer

    return make


@pytest.fixture(params=["llama", "converted", "all_recurrent"])
def model(request):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=BYTE_VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
    )
    base = LlamaForCausalLM(config).eval()
    heads = {"llama": None, "converted": [[0, 1], [3]], "all_recurrent": [[0, 1, 2, 3]] * 2}[request.param]
    return base if heads is None else convert(base, heads, dt_rank=4).eval()
