"""The contradictions in the paper: their arithmetic is right, and their numbers are those that the paper prints."""

import math
import operator
import re

import pytest

from recurformer.claims.claim import INCONSISTENCIES, STATEMENTS
from recurformer.data.sizes import PUBLISHED
from recurformer.paper import CACHE_LENGTHS, CELLS, LLAMA2_7B_LAYERS, PYRAMIDINFER_MINIMUM, PYRAMIDINFER_RATIO

PRINTED = {cell.id: cell.printed for cell in CELLS} | {name: said.quote for name, said in STATEMENTS.items()}
VALUES = {cell.id: cell.value for cell in CELLS}
EQUATION = re.compile(r"([-(\d][-+−·/(), .\d]*) = (-?[\d.]+)(?: ([<>≠]) (-?[\d.]+))?")
COMPARE = {"<": operator.lt, ">": operator.gt, "≠": operator.ne}


@pytest.mark.parametrize("name", INCONSISTENCIES)
def test_the_arithmetic_is_right_and_its_numbers_are_printed(name):
    found = INCONSISTENCIES[name]
    text = "\n".join(found.arithmetic)
    for terms, result, sign, other in EQUATION.findall(text):
        value = eval(terms.replace("−", "-").replace("·", "*").replace(",", ""))
        assert value == pytest.approx(float(result), abs=0.5001 * 10 ** -len(result.partition(".")[2]))
        assert not sign or COMPARE[sign](float(result), float(other))
    for place in found.cites:
        assert all(number in text for number in re.findall(r"\d(?:[\d.,]*\d)?", PRINTED[place]) or [PRINTED[place]])
    assert set(found.claims) <= set(PRINTED)


def test_the_intervals_called_apart_have_numbers_in_common():
    bounds = {cell.id: cell.bounds for cell in CELLS}
    overlaps = {name: found for name, found in INCONSISTENCIES.items() if name.startswith("audit/overlap")}
    assert len(overlaps) == 4
    for found in overlaps.values():
        lows, highs = zip(*(bounds[place] for place in found.cites), strict=True)
        assert max(lows) < min(highs)
        assert found.arithmetic[0].endswith(f"both hold {max(lows):.4f} to {min(highs):.4f}")


def test_only_what_is_kept_gives_pyramidinfers_printed_cache():
    length = CACHE_LENGTHS["cs_10k"]
    caches = []
    for ratio in (1 - PYRAMIDINFER_RATIO, PYRAMIDINFER_RATIO):
        held = [max(PYRAMIDINFER_MINIMUM, int(length * ratio**layer)) for layer in range(LLAMA2_7B_LAYERS)]
        caches.append(f"{sum(held) / LLAMA2_7B_LAYERS / length:.4f}")
    steps = INCONSISTENCIES["audit/eviction-ratio"].arithmetic
    assert caches[1] == PRINTED["table2/llama2-7b/pyramidinfer/cs_10k"]
    assert all(cache in step for cache, step in zip(caches, steps, strict=True))


@pytest.mark.parametrize("model", ["qwen2-0.5b", "qwen2-7b"])
@pytest.mark.parametrize("rounding", [math.floor, round, math.ceil])
@pytest.mark.parametrize("scope", ["layer", "model"])
def test_qwen2s_caches_break_the_bounds_of_both_ways_to_share_them(model, rounding, scope):
    layers = PUBLISHED[model]["num_hidden_layers"] if scope == "model" else 1

    def growing(beta):
        """What is printed, without the part that does not grow with the text."""
        short, long = (VALUES[f"table4/{model}/{beta:.2f}/{quantity}"] for quantity in CACHE_LENGTHS)
        return (6 * long - short) / 5

    for unit in ("num_attention_heads", "num_key_value_heads"):
        units = layers * PUBLISHED[model][unit]
        assert growing(0.5) < 1 - rounding(0.5 * units) / units  # least that stays if a cache goes with its last head
    heads = layers * PUBLISHED[model]["num_attention_heads"]
    assert growing(0.75) > 1 - rounding(0.75 * heads) / heads  # most that stays if it goes with its first
