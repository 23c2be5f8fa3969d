"""Tables 2 and 4 show what recordings of a GPU hold, in columns of its own beside this study's and the paper's."""

from pathlib import Path

import pandas as pd
import pytest

from recurformer.claims.evidence import read_recordings
from recurformer.cli.main import main
from recurformer.cli.study import write_recording
from recurformer.records import run_record

GPU = "NVIDIA H200"
KINDS = {"table2": ("cache", "hashhop", "baseline", "memory", "pyramidinfer")}
KINDS["table4"] = KINDS["table2"][:-1]


def recorded_frames(measurements) -> dict[str, pd.DataFrame]:
    """What a GPU measured: caches that are a little larger, lengths, and h_gq of a model that no other study has."""
    cache = measurements["cache"].query("unit == 'kv_group' and model == 'llama2-7b'")
    large = (cache["beta"] == 0) & (cache["length"] == 61_440)
    lengths = measurements["memory"].query("model == 'llama2-7b' and beta == 0.9").assign(l_m=88_000, source="measured")
    named = {"model": {"hashhop-llama": "gpu-trained"}}
    return {
        "cache_peak": cache.assign(ratio=(cache["ratio"] + 0.001).mask(large), peak_bytes=1),
        "memory": pd.concat([measurements["memory"], lengths]),
        "hashhop": measurements["hashhop"].query("model == 'hashhop-llama'").replace(named),
        "baseline": measurements["baseline"].query("model == 'hashhop-llama'").replace(named),
    }


@pytest.fixture
def shown(measurements, tmp_path, monkeypatch):
    """Renders a table beside a recording of the given frames; the written text of a format."""

    def write(folder, frames, gpu) -> list[str]:
        monkeypatch.setattr("recurformer.records._accelerator", lambda: gpu and {"name": gpu, "peak_memory_bytes": 1})
        files = [folder / kind / f"{kind}.csv" for kind in frames]
        for file, frame in zip(files, frames.values(), strict=True):
            file.parent.mkdir(parents=True)
            with run_record(file.with_name("run.json"), file.stem, [], {}, outputs=[file]):
                frame.to_csv(file, index=False)
        return [str(file) for file in files]

    def render(table, frames, gpu=GPU):
        files = write(tmp_path / "results", {kind: measurements[kind] for kind in KINDS[table]}, None)
        made = [Path(file) for file in write(tmp_path / "gpu/results", frames, gpu)]
        made += [file.with_name("run.json") for file in made]
        (tmp_path / "recorded/gpu").mkdir(parents=True)
        write_recording(tmp_path / "recorded/gpu", {file.relative_to(tmp_path / "gpu"): file for file in made})
        out = [str(tmp_path / f"{table}.{suffix}") for suffix in ("csv", "md")]
        words = ["--recorded", str(tmp_path / "recorded"), "--out", *out]
        assert main(["table", table, *files, *words]) == 0
        return pd.read_csv(out[0]), (tmp_path / f"{table}.md").read_text()

    return render


def test_table4_names_the_gpu(shown, measurements, tmp_path):
    long, text = shown("table4", recorded_frames(measurements))
    llama = long[(long["model"] == "llama2-7b") & (long["beta"] == 0.9)].set_index(["quantity", "setting"])
    ours, theirs = llama.loc[("cs_10k", "kv_group")], llama.loc[("cs_10k", GPU)]
    assert ours["compared"] and not theirs["compared"]
    assert theirs["ours"] == pytest.approx(ours["ours"] + 0.001)
    assert (ours["status"], theirs["status"]) == ("counted", "measured")
    assert theirs["runs"] and theirs["runs"] != ours["runs"]
    assert llama.loc[("l_m", GPU), "ours"] == llama.loc[("l_m", f"{GPU}, chunked"), "ours"] == 88_000
    assert llama.loc[("l_m", "one_shot"), "status"] == "model", "this study's own stays what it was"
    only = long[(long["model"] == "gpu-trained") & (long["quantity"] == "h_gq")]
    assert set(only.loc[only["compared"], "setting"]) == {"official"}
    assert only.loc[only["compared"], "ours"].isna().all()
    assert set(only.loc[~only["compared"], "setting"]) == {GPU, f"{GPU}, appendix layout"}
    lost = long[(long["quantity"] == "cs_60k") & (long["setting"] == GPU) & (long["beta"] == 0)]
    assert set(lost["model"]) == {"llama2-7b"}
    assert lost["ours"].isna().all(), "the GPU could not hold it"
    heading = text.splitlines()[2]
    assert f"cs_10k, {GPU}" in heading and f"h_gq, {GPU}, appendix layout" in heading
    assert f"- {GPU}: recorded on this GPU by another study." in text
    assert read_recordings(tmp_path / "recorded")[0].rows("cache_peak", model="llama2-7b").shape[0] == 12


def test_table2_has_the_gpu_in_its_lines(shown, measurements):
    wide, text = shown("table2", recorded_frames(measurements))
    line = wide[(wide["model"] == "llama2-7b") & (wide["method"] == "RecurFormer")].iloc[0]
    assert line[f"cs_10k_ours_{GPU}"] == pytest.approx(line["cs_10k_ours"] + 0.001)
    assert f"cs_10k, {GPU}" in text
    assert "gpu-trained" in set(wide["model"])


def test_h_gq_of_a_model_that_had_not_learned_the_task_has_a_mark(shown, measurements):
    frames = recorded_frames(measurements)
    frames["baseline"] = frames["baseline"].assign(correct=1)
    long, text = shown("table4", frames)
    weak = long[(long["model"] == "gpu-trained") & (long["setting"] == GPU) & (long["beta"] > 0)]
    assert set(weak["status"]) == {"undecided"} and weak["ours"].notna().all()
    assert text.count("] ? |") == 2 * len(weak), "in both layouts"


def test_a_recording_without_a_gpu_has_no_columns(shown, measurements):
    long, text = shown("table4", recorded_frames(measurements), gpu=None)
    assert set(long["setting"]) == {"kv_group", "head", "official", "paper", "one_shot", "chunked"}
    assert "gpu-trained" not in set(long["model"])
    assert "recorded on this GPU" not in text


def test_every_committed_recording_is_evidence():
    """Also where a kind has files without a row: a recipe without a closed form has no errors of its layers."""
    folder = Path(__file__).parents[2] / "recorded"
    found = {Path(evidence.source).name: evidence for evidence in read_recordings(folder)}
    assert set(found) == {path.name for path in folder.iterdir() if path.is_dir()} > {"cpu", "long", "recovery"}
    errors = found["recovery"].rows("layer_errors")
    assert {"bytes_mamba", "plus_98k"} <= set(errors["arm"]) and "bytes_window" not in set(errors["arm"])
