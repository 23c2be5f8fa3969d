"""`recurformer adapt`: what it writes, that the numbers are the model's own, and that a killed run goes on."""

import json
import shutil
from argparse import Namespace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from adapt_world import command, write_texts
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import recurformer
from recurformer.cli.adapt import model_folder
from recurformer.cli.checkpoints import save_checkpoint
from recurformer.cli.main import main
from recurformer.cli.resumable import resumable_run
from recurformer.data.backbones import open_random
from recurformer.data.documents import read_documents
from recurformer.data.fetch import ResourceError
from recurformer.files import LOCK
from recurformer.measure.cache import count_cache
from recurformer.recover.adapt import text_windows
from recurformer.recover.kept import KeptSteps
from recurformer.recover.learn import Transfer
from recurformer.recover.pair import quality_rows
from recurformer.recover.recipe import BY_PRICE, PASSES, RECIPES, TRAINING, Plan, plan_steps

ADAPT, RUN = "recurformer.recover.adapt", "recurformer.recover.run"


def measured(folder):
    return json.loads((folder / "out/adaptation.json").read_text())


def weights(folder):
    return (folder / "out/model.safetensors").read_bytes()


def test_it_writes_an_ordinary_checkpoint_with_card_and_pictures(adapted):
    names = {path.name for path in (adapted / "out").iterdir()}
    assert names >= {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md",
        "heads.png", "quality.png", "adaptation.json",
    }  # fmt: skip
    assert {path.name for path in adapted.glob("*") if path.suffix != ".txt"} == {"backbone", "out"}
    model = AutoModelForCausalLM.from_pretrained(adapted / "out")
    assert model.dtype == torch.bfloat16  # as the backbone was saved
    assert model.config.recurrent_heads == measured(adapted)["heads"]
    tokenizer = AutoTokenizer.from_pretrained(adapted / "out")
    assert model.generate(**tokenizer("Once", return_tensors="pt"), max_new_tokens=4).shape[0] == 1


def test_the_numbers_are_those_of_the_written_model(adapted):
    found = measured(adapted)
    stages = {row["stage"]: row for row in found["stages"]}
    assert list(stages) == ["original", "converted", "calibrated", "transferred", "distilled", "adapted"]
    model, original = (
        AutoModelForCausalLM.from_pretrained(adapted / name, dtype="float32") for name in ("out", "backbone")
    )
    tokenizer = AutoTokenizer.from_pretrained(adapted / "out")
    documents = read_documents(sorted(adapted.glob("text*.txt")))
    train_ids, held_out = text_windows(documents, tokenizer, 64, seed=0)
    rows = quality_rows(original, model, held_out)
    assert stages["adapted"]["divergence"] == pytest.approx(rows.divergence.mean(), rel=1e-4)
    assert stages["original"]["divergence"] == pytest.approx(0, abs=1e-6)
    assert stages["adapted"]["divergence"] < stages["calibrated"]["divergence"] < stages["converted"]["divergence"]
    steps = found["plan"]["transfer_steps"], found["plan"]["distil_steps"]
    assert steps == (len(train_ids), (3 * len(train_ids) + 1) // 2)  # all passes: the time would allow more
    assert [len(rows) for rows in found["trainings"].values()] == list(steps)
    assert stages["adapted"]["tokens"] == train_ids.numel() + 2 * 64 * sum(steps)
    for row in found["cache"]:
        half = AutoModelForCausalLM.from_pretrained(adapted / "out")
        assert row["adapted"] == count_cache(half, row["length"]).bytes.sum() < row["original"]
    assert [row["phase"] for row in found["speed"]] == ["prefill", "decode"]
    asked = {row["length"]: row.get("asked") for row in found["passkeys"]["adapted"]}
    assert asked == {256: None, 512: 10}  # of single bytes the bare question alone has more than 256
    assert f"{stages['adapted']['perplexity']:.2f}" in (adapted / "out/README.md").read_text()


@pytest.fixture(scope="module")
def within_budget(adapted, tmp_path_factory):
    """The same model with three fifths of its cache at 64 tokens, and windows parted at 20."""
    folder = tmp_path_factory.mktemp("budget")
    shutil.copytree(adapted, folder, ignore=shutil.ignore_patterns("out"), dirs_exist_ok=True)
    texts = sorted(map(str, folder.glob("text*.txt")))
    words = ["adapt", str(folder / "backbone"), str(folder / "out"), "--tokens", "64", "--text", *texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{ADAPT}.LENGTHS", (20, 128))
        assert main([*words, "--cache", "0.6"]) == 0
    return folder, words


def test_a_budget_gives_each_group_a_window_and_trains_nothing(within_budget):
    folder, _ = within_budget
    found, model = measured(folder), AutoModelForCausalLM.from_pretrained(folder / "out")
    assert model.config.mixer == "window" and found["beta"] is None
    kept = [list(zip(*layer, strict=True)) for layer in zip(found["windows"], found["bits"], strict=True)]
    most = model.config.max_position_embeddings
    replaced = [[(window or most, bits) for window, bits in layer if (window, bits) != (None, 16)] for layer in kept]
    saved = zip(model.config.group_windows, model.config.group_bits, strict=True)
    assert [list(zip(*layer, strict=True)) for layer in saved] == replaced
    assert len({keep for layer in kept for keep in layer}) > 1
    assert [row["length"] for row in found["cache"]] == [20, 64]
    held = found["cache"][-1]
    assert held["length"] == 64 and held["adapted"] == count_cache(model, 64).bytes.sum()
    assert 0.5 * held["original"] < held["adapted"] <= 0.6 * held["original"]
    assert found["plan"]["distil_steps"] == 0 and not found["trainings"]["distil"]
    words = [f"{'all' if window is None else window} / {bits}" for window, bits in kept[-1]]
    (row,) = (
        line for line in (folder / "out/README.md").read_text().splitlines() if line.startswith(f"| {len(kept) - 1} ")
    )
    assert [cell.strip() for cell in row.split("|")][2:-1] == words
    stages = {row["stage"]: row for row in found["stages"]}
    estimated = dict(map(tuple, found["estimated"]))
    assert 0.2 < stages["adapted"]["divergence"] / estimated[0.6] < 5
    assert list(estimated.values()) == sorted(estimated.values(), reverse=True)
    asked = {row["length"]: row.get("asked") for row in found["passkeys"]["adapted"]}
    assert set(asked) == {20, 64}
    parts = {part["stop"]: part for part in stages["adapted"]["parts"]}
    original = AutoModelForCausalLM.from_pretrained(folder / "backbone", dtype="float32")
    documents = read_documents(sorted(folder.glob("text*.txt")))
    _, held_out = text_windows(documents, AutoTokenizer.from_pretrained(folder / "out"), 64, seed=0)
    for stop, ids, first in ((20, held_out[:, :20], 0), (64, held_out, 19)):
        with torch.no_grad():
            ours, theirs = (one(ids).logits[:, first:-1].log_softmax(-1) for one in (model.float(), original))
        divergence = (theirs.exp() * (theirs - ours)).sum(-1).mean()
        assert parts[stop]["divergence"] == pytest.approx(float(divergence), rel=1e-3)
    assert [row["stage"] for row in found["stages"]] == ["original", "adapted"]
    page = (folder / "out/README.md").read_text()
    assert f"| 0.6 | {estimated[0.6]:.4f} |" in " ".join(page.split()) and "Nothing was trained" in page
    assert "keeps a window of tokens or all of them, at 16 bits a number or fewer" in page


@pytest.mark.parametrize(("cache", "rate", "last"), [("0.3", 3e-4, "distilled"), ("0.6", 3e-3, "taken back")])
def test_a_budget_with_minutes_learns(within_budget, tmp_path, monkeypatch, cache, rate, last):
    folder, words = within_budget
    monkeypatch.setattr(f"{ADAPT}.BY_PRICE", BY_PRICE.model_copy(update={"learning_rate": rate}))
    assert main([*words[:2], str(tmp_path / "out"), *words[3:], "--cache", cache, "--minutes", "60"]) == 0
    found = measured(tmp_path)
    divergence = {row["stage"]: row["divergence"] for row in found["stages"]}
    assert list(divergence)[-2:] == [last, "adapted"]
    assert (divergence["adapted"] < 0.97 * divergence["converted"]) is (last == "distilled")
    page, steps = (tmp_path / "out/README.md").read_text(), found["plan"]["distil_steps"]
    assert f"{steps} steps of distillation, 2 windows a step; all steps" in page
    assert f"Within {cache} of the cache" in page and "Nothing was trained" not in page
    assert steps == len(found["trainings"]["distil"]) > 10 and found["seconds"]["distil"] > 0
    ours, before = (load_file(place / "model.safetensors") for place in (tmp_path / "out", folder / "backbone"))
    changed = {name.split(".")[3] for name in before if not torch.equal(ours[name], before[name])}
    assert changed == ({"self_attn"} if last == "distilled" else set())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--cache", "0.4", "--beta", "0.5"], "--cache and --beta"),
        (["--cache", "0.4", "--loss", "0.1"], "--cache and --loss"),
        (["--loss", "0.1", "--mixer", "mamba"], "--loss and --mixer"),
        (
            ["--cache", "0.05"],
            "cache=0.05: windows of 16 tokens and 4 bits in all heads need 0.2227 of the cache at 64 tokens; give at",
        ),
    ],
)
def test_a_budget_that_cannot_be_is_refused_in_one_line(within_budget, more, message, tmp_path, capsys):
    _, words = within_budget
    words = [*words[:2], str(tmp_path / "other"), *words[3:]]
    assert main([*words, *more]) != 0
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error
    assert not list(tmp_path.glob("other*"))


def interrupt(monkeypatch, place, calls=0):
    """The function at `place` ends the run at its call of that number."""
    module, _, name = place.rpartition(".")
    owner = Transfer if name == "__call__" else import_module(module)
    real, left = getattr(owner, name), [calls]

    def killed(*args, **kwargs):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, killed)


@pytest.mark.parametrize(
    ("place", "calls"),
    [
        ("recurformer.recover.kept.save_file", 0),
        ("transfer.__call__", 9),
        ("recurformer.recover.learn.divergence", 15),
        ("recurformer.render.adaptation.write_adaptation", 0),
    ],
)
def test_a_killed_run_ends_with_the_same_bytes(adapted, world, place, calls, monkeypatch, capsys):
    monkeypatch.setattr("recurformer.recover.recipe.SAVE_SECONDS", 0)  # a checkpoint at every step
    with monkeypatch.context() as patch:
        interrupt(patch, place, calls)
        assert main(command(world)) == 130
    assert capsys.readouterr().err.endswith("adapt: stopped; the same command continues where it stopped\n")
    assert not (world / "out").exists() and (world / "out.checkpoints").is_dir()
    assert main(command(world)) == 0
    assert weights(world) == weights(adapted)
    assert not (world / "out.checkpoints").exists()


def spelled(folder, out, model, *more):
    """The command as a user in the folder of the backbone may type it."""
    return ["adapt", model, out, *command(folder, *more)[3:]]


@pytest.mark.parametrize(("out", "model"), [("./out/", "./backbone/"), ("{}/out", "{}/backbone")])
def test_the_steps_are_counted_once(world, monkeypatch, out, model):
    monkeypatch.setattr(f"{ADAPT}.plan_steps", lambda *_: Plan(2, 3, 1))
    monkeypatch.chdir(world)
    with monkeypatch.context() as patch:
        interrupt(patch, f"{RUN}.distil", 1)  # the first call only takes the time
        assert main(spelled(world, "out", "backbone")) == 130
    monkeypatch.setattr(f"{ADAPT}.plan_steps", lambda *_: pytest.fail("counted again"))
    monkeypatch.setattr(f"{RUN}.calibrate", lambda *_: pytest.fail("solved again"))
    assert main(spelled(world, out.format(world), model.format(world))) == 0
    assert [len(rows) for rows in measured(world)["trainings"].values()] == [2, 3]
    assert {path.name for path in world.glob("*") if path.suffix != ".txt"} == {"backbone", "out"}


def test_the_state_of_another_run_stays(adapted, world, monkeypatch, capsys):
    monkeypatch.chdir(world)
    with monkeypatch.context() as patch:
        interrupt(patch, f"{RUN}.calibrate")
        assert main(spelled(adapted, "out", "backbone")) == 130
    (state,) = Path("out.checkpoints").glob("*/*/quality-original.json")
    assert "out.checkpoints" not in capsys.readouterr().err
    assert main(spelled(adapted, "out", "backbone", "--minutes", "0.001")) == 0
    assert "out.checkpoints: keeps a run by other settings or other code; this one" in capsys.readouterr().err
    assert state.is_file()
    monkeypatch.setattr(f"{ADAPT}.profile_heads", lambda *_: pytest.fail("profiled again"))
    assert main(spelled(adapted, "out", "backbone")) == 0
    assert "takes up what an earlier run has finished" in capsys.readouterr().err
    assert weights(world) == weights(adapted)
    assert not Path("out.checkpoints").exists()


def test_files_of_a_user_beside_the_states_stay(tmp_path):
    with resumable_run(Namespace(stage="adapt", checkpoints=None), str(tmp_path / "out")) as state:
        (state / "step").mkdir(parents=True)
        (tmp_path / "out.checkpoints/notes.txt").write_text("years of work")
    assert sorted(path.name for path in tmp_path.rglob("*")) == [LOCK, "notes.txt", "out.checkpoints"]


def test_a_training_that_does_harm_is_taken_back(world, capsys, monkeypatch):
    monkeypatch.setattr(f"{ADAPT}.TRAINING", TRAINING.model_copy(update={"learning_rate": 3.0}))
    assert main(command(world)) == 0
    assert "the result has the weights from before it" in capsys.readouterr().out
    divergence = {row["stage"]: row["divergence"] for row in measured(world)["stages"]}
    assert divergence["distilled"] > divergence["calibrated"] == divergence["taken back"]
    assert "it did not lower the divergence" in (world / "out/README.md").read_text()
    assert divergence["adapted"] == pytest.approx(divergence["calibrated"], rel=0.05)


@pytest.mark.parametrize("mixer", RECIPES)
def test_without_time_the_closed_form_remains(world, capsys, mixer):
    assert main(command(world, "--minutes", "0.001", "--mixer", mixer)) == 0
    assert AutoModelForCausalLM.from_pretrained(world / "out").config.mixer == mixer
    said = "plan: 0 steps of transfer, 0 of distillation; without any training this takes 1 min"
    assert said in capsys.readouterr().out
    found = measured(world)
    assert [row["stage"] for row in found["stages"]] == ["original", "converted", "calibrated", "adapted"]
    assert found["plan"]["transfer_steps"] == found["plan"]["distil_steps"] == 0
    assert found["stages"][-1]["divergence"] == pytest.approx(found["stages"][-2]["divergence"], rel=0.05)


@pytest.mark.parametrize(
    ("architecture", "mixer"), [("gemma3_text", "mamba"), ("phi3", "mamba"), ("granite", "window_state")]
)
def test_other_families_come_back_too(architecture, mixer, quick, tmp_path):
    shape = {"hidden_size": 16, "heads": 4, "kv_heads": 2, "head_dim": 4, "initializer_range": 0.3}
    model, tokenizer = open_random("byte", architecture=architecture, **shape)
    save_checkpoint(tmp_path / "backbone", model, tokenizer)
    write_texts(tmp_path)
    assert main(command(tmp_path, "--minutes", "0.001", "--mixer", mixer)) == 0
    divergence = {row["stage"]: row["divergence"] for row in measured(tmp_path)["stages"]}
    if mixer == "mamba":
        assert 0 == divergence["original"] < divergence["calibrated"] < divergence["converted"]
    else:  # a window as wide as the text is the original
        assert max(divergence.values()) < 1e-4
    heads = AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.recurrent_heads
    assert [len(layer) for layer in heads] == ([0, 2] if architecture == "gemma3_text" else [2, 2])


def test_it_is_a_function_too(adapted, tmp_path, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(adapted / "backbone", dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(adapted / "backbone")
    documents = read_documents(sorted(adapted.glob("text*.txt")))
    recipe = RECIPES["mamba"].model_copy(update={"trained": "attention", "transfer_steps": 3})
    monkeypatch.setitem(PASSES, "distil", 0.5)
    said = []
    settings = {"folder": tmp_path / "state", "beta": 0.25, "minutes": 60, "tokens": 32, "recipe": recipe}
    converted, found = recurformer.adapt(model, tokenizer, documents, say=said.append, **settings)
    assert sum(map(len, converted.config.recurrent_heads)) == 2
    assert (
        found["recipe"]["tokens"] == 32
        and found["plan"]["transfer_steps"] == 3
        and said[0].startswith("text: ")
        and said[1].startswith("original: perplexity")
    )
    with pytest.raises(ValueError, match="already converted"):
        recurformer.adapt(converted, tokenizer, documents, folder=tmp_path / "again")
    monkeypatch.delattr(f"{ADAPT}.profile_heads")  # it is among the finished steps
    assert recurformer.adapt(model, tokenizer, documents, **settings)[1]["plan"] == found["plan"]
    monkeypatch.setattr(f"{ADAPT}.code_digest", lambda place: "another version")
    with pytest.raises(NameError, match="profile_heads"):
        recurformer.adapt(model, tokenizer, documents, **settings)


def test_a_name_that_is_no_folder_is_asked_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ResourceError, match="owner/name: no such folder, and as a name of the model hub: cannot read"):
        model_folder("owner/name")


@pytest.mark.parametrize(
    ("left", "expected"),
    [(-5, (0, 0)), (0, (0, 0)), (19, (0, 0)), (20, (0, 10)), (30, (10, 10)), (300, (100, 100)), (1e9, (500, 750))],
)
def test_the_time_is_divided(left, expected):
    plan = plan_steps(left, {"transfer": 1.0, "distil": 2.0}, 500, RECIPES["mamba"])
    assert (plan.transfer_steps, plan.distil_steps, plan.save_every) == (*expected, 60)


def test_other_settings_start_anew_and_nothing_is_removed(tmp_path):
    values = [torch.zeros(2)]
    (tmp_path / "state").mkdir()
    (tmp_path / "state/thesis.tex").write_text("years of work")

    def make(value):
        return lambda: values[0].fill_(value).tolist()

    model, text = torch.nn.Linear(1, 1), torch.zeros(1, 2, dtype=torch.long)
    one, runs = ([model], [text], 1), []
    for number, other in enumerate(
        (([model], [text], 2), ([model], [text + 1], 1), ([torch.nn.Linear(2, 1)], [text], 1))
    ):
        runs += [(one, 10.0 + number, 10.0), (other, float(number), float(number))]
    for (models, windows, setting), given, expected in runs:
        values[0] = torch.zeros(2)
        kept = KeptSteps(tmp_path / "state", models, windows, setting=setting)
        assert kept.change("step", {"values": values[0]}, make(given)) == [expected] * 2
        assert values[0].tolist() == [expected] * 2 and set(kept.seconds) == {"step"}
    assert (tmp_path / "state/thesis.tex").read_text() == "years of work"


def test_what_a_kill_left_unfinished_is_no_step(tmp_path):
    kept = KeptSteps(tmp_path)
    (kept.folder / ".unfinished-second.json").mkdir(parents=True)
    assert kept.result("first", lambda: 1) == 1 and set(kept.seconds) == {"first"}


def test_a_converted_model_is_refused_before_any_budget_is_counted(within_budget):
    folder, _ = within_budget
    model = AutoModelForCausalLM.from_pretrained(folder / "out", dtype="float32")
    with pytest.raises(ValueError, match="the model is already converted"):
        import_module(ADAPT).adapt(model, None, None, folder=folder / "state", tokens=64)
