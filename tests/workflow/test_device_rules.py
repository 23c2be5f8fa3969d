"""What a study measures on a device: real jobs, on a processor."""

import pandas as pd
import pytest
import yaml

from recurformer.records import read_record
from tests.workflow.dry_runs import ROOT, link_workflow, snakemake


@pytest.mark.slow
def test_caches_are_measured_by_an_ordinary_job(tmp_path):
    link_workflow(tmp_path, without=["config"])
    study = yaml.safe_load((ROOT / "config/smoke.yaml").read_text())
    study["device_measurements"] = {"device": "cpu", "backbones": ["tiny"]}
    study["caches"]["sizes"] = {"lengths": [64, 128]}
    (tmp_path / "config").mkdir()
    (tmp_path / "config/default.yaml").write_text(yaml.safe_dump(study))
    answer = snakemake(tmp_path, "device_measurements", "--cores", "1")
    assert answer.returncode == 0, answer.stderr
    place = tmp_path / "results/smoke/device/tiny"
    frame = pd.read_csv(place / "cache_peak.csv")
    assert sorted(set(frame.beta)) == study["betas"]
    assert frame.total_bytes.tolist() == frame.counted_bytes.tolist()
    assert read_record(place / "cache_peak.run.json")["outputs"] == ["cache_peak.csv"]
