"""Card and pictures of an adaptation: every number and every text of others, and no torch."""

import json

import pytest
import yaml

from recurformer.render.adaptation import card, compared, steps, write_adaptation

IMAGE = "<img src=x onerror=alert(1)>"


def quality(stage, tokens, perplexity, divergence):
    spread = {"perplexity": 0.5, "divergence": 0.1}
    values = {"perplexity": perplexity, "divergence": divergence}
    intervals = {
        f"{name}_interval": [max(value - spread[name], 0), value + spread[name]] for name, value in values.items()
    }
    return {"stage": stage, "tokens": tokens, "windows": 24, **values, **intervals}


@pytest.fixture
def found():
    """Of two layers of four heads, with two groups replaced."""
    return {
        "base": {"name": "owner/tiny", "hub": True, "revision": "c0ffee", "configured_name": None, "license": "mit"},
        "beta": 0.5, "minutes": 30, "seed": 0, "dtype": "bfloat16", "documents": [9, 2], "tokens": [40_960, 12_288],
        "recipe": {"mixer": "mamba", "tokens": 512, "batch_size": 2}, "plan": {"transfer_steps": 4, "distil_steps": 2},
        "attention_heads": 4, "kv_heads": 2, "ra_i": [[1, 0.9, 0.2, 0.1], [0.8, 0.7, 0.3, 0.4]],
        "heads": [[0, 1], [0, 1]], "parameters": [1000, 1500],
        "stages": [
            quality("original", 0, 17.25, 0.0), quality("converted", 0, 12_000.0, 7.5),
            quality("calibrated", 32_768, 51.0, 1.25), quality("transferred", 36_864, 31.5, 0.875),
            quality("adapted", 38_912, 20.7, 0.25),
        ],
        "calibration": [],
        "trainings": {"transfer": [], "distil": [{"step": 1, "loss": 0.6}, {"step": 2, "loss": 0.4}]},
        "passkeys": {
            name: [{"length": 256, "reason": "too small"}, {"length": 512, "found": number, "asked": 10}]
            for name, number in (("original", 9), ("adapted", 7))
        },
        "cache": [{"length": 10_240, "original": 2_000_000, "adapted": 1_100_000}],
        "speed": [
            {"phase": "prefill", "tokens": 480, "original": 200.0, "adapted": 200.0, "ratio": 1.0},
            {
                "phase": "decode", "tokens": 32, "original": 20.0, "adapted": 25.0, "ratio": 1.25,
                "ratio_interval": [1.2, 1.3],
            },
        ],
        "seconds": {"heads": 60.0, "plan": 30.0},
    }  # fmt: skip


def test_before_and_after(found):
    rows = {name: cells for name, *cells in compared(found)}
    perplexity = ["17.25 [16.75, 17.75]", "20.70 [20.20, 21.20]", "1.200"]
    assert rows["perplexity on 24 held-out windows of 512 tokens"] == perplexity
    assert rows["passkeys found in 256 tokens"][:2] == ["not measured"] * 2
    assert rows["passkeys found in 512 tokens"][:2] == ["9 of 10", "7 of 10"]
    assert rows["cache at 10,240 tokens, MB"] == ["2.0", "1.1", "0.550"]
    assert rows["decoding of 32 tokens after 480, tokens/s"] == ["20.0", "25.0", "1.25 [1.20, 1.30]"]
    assert rows["parameters"] == ["1,000", "1,500", "1.500"]
    assert [row[1] for row in steps(found)] == ["0", "0", "32,768", "36,864", "38,912"]


def test_each_part_of_a_window_has_its_own_places(found):
    """A part goes from the end of the part before it to its own."""
    parts = [{**found["stages"][0], "stop": stop, "perplexity": float(stop)} for stop in (512, 2048)]
    found["stages"] = [{**row, "parts": parts} for row in found["stages"]]
    rows = {name: cells for name, *cells in compared(found)}
    assert [rows[f"perplexity of tokens {part}"][0][:7] for part in ("1 to 512", "513 to 2,048")] == [
        "512.00 ",
        "2,048.0",
    ]
    assert "divergence of tokens 513 to 2,048" in rows


def test_the_card_says_where_the_model_comes_from(found):
    text = card(found)
    front = yaml.safe_load(text.split("---")[1])
    assert front["base_model"] == "owner/tiny" and front["license"] == "mit"
    assert "50 % of the attention heads" in text and "commit c0ffee" in text and "1.5 minutes" in text
    found["base"] |= {"hub": False, "revision": None, "license": None, "configured_name": "Tiny v2"}
    text = card(found)
    assert not {"base_model", "license"} & yaml.safe_load(text.split("---")[1]).keys()
    assert "which its configuration calls “Tiny v2”" in text and "name no licence" in text


def test_texts_of_others_stay_texts(found):
    found["base"] |= {"name": IMAGE, "configured_name": f"{IMAGE}|", "license": f"{IMAGE}\n---\n"}
    front, body = card(found).removeprefix("---\n").split("\n---\n\n# ", 1)
    assert yaml.safe_load(front)["license"] == found["base"]["license"]
    assert "<img" not in body


def test_it_is_written_whatever_there_was_time_for(found, tmp_path):
    write_adaptation(tmp_path, found)
    assert json.loads((tmp_path / "adaptation.json").read_text()) == found
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert all(f"]({picture})" in card(found) and picture in before for picture in ("quality.png", "heads.png"))
    write_adaptation(tmp_path, found)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    found["stages"] = [row for row in found["stages"] if row["stage"] != "transferred"]
    found["trainings"]["distil"] = []
    write_adaptation(tmp_path, found)
    assert (tmp_path / "quality.png").read_bytes() != before["quality.png"]
