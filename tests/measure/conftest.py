import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from recurformer.model.convert import convert
from tests.one_thread import one_thread

__all__ = ["one_thread"]

CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:;'\"=>-→⇒\n?!#()<>|/_*"


@pytest.fixture
def make_tokenizer():
    """One token a character. `begins`: put <s> before a text unasked, as Llama's tokenizer does."""

    def make(begins: bool = False, bos: bool = True) -> PreTrainedTokenizerFast:
        vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 3}
        vocabulary |= {character: 4 + index for index, character in enumerate(CHARACTERS)}
        tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = Split("", "isolated")
        if begins:
            tokenizer.post_processor = TemplateProcessing(
                single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
            )
        names = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"} | (
            {"bos_token": "<s>"} if bos else {}
        )
        wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)
        assert wrapped.decode(wrapped("ab 1", add_special_tokens=False).input_ids).replace(" ", "") == "ab1"
        return wrapped

    return make


@pytest.fixture(params=["llama", "converted", "all_recurrent"])
def model(request):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
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
