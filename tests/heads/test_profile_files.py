"""RA-I of a profile, and profiles on disk."""

import pyarrow.parquet as pq
import pytest
import torch

from recurformer import HeadProfile


def some_profile(**changes) -> HeadProfile:
    rr = torch.rand(5, 2, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    settings = {"window": 9, "threshold": 0.5, "exclude_first": True, "kv_heads": 2, "tokens": 64, **changes}
    return HeadProfile(rr, **settings)


def test_ra_i_counts_samples_above_the_threshold():
    profile = some_profile()
    assert torch.equal(profile.ra_i, (profile.rr > 0.5).sum(0))
    assert int(profile.with_threshold(0.0).ra_i.min()) == 5 and int(profile.with_threshold(1.0).ra_i.max()) == 0
    rr = torch.tensor([[[0.5, 0.51]]])
    assert HeadProfile(rr, 1, 0.5, True, 2, 4).ra_i.tolist() == [[0, 1]]  # exceeds, not reaches


def test_save_and_load(tmp_path):
    profile = some_profile(model="tiny")
    profile.rr[:, 1, 2] = float("nan")
    path = tmp_path / "new folder" / "profile.parquet"
    profile.save(path)
    loaded = HeadProfile.load(path)
    assert torch.equal(loaded.rr.nan_to_num(-1), profile.rr.nan_to_num(-1))
    for name in ("window", "threshold", "exclude_first", "kv_heads", "tokens", "model"):
        assert getattr(loaded, name) == getattr(profile, name)
    frame = pq.read_table(path).to_pandas()
    assert list(frame.columns) == ["model", "threshold", "sample", "layer", "head", "rr"]
    assert len(frame) == profile.rr.numel() and set(frame.model) == {"tiny"} and set(frame.threshold) == {0.5}
    row = frame[(frame["sample"] == 4) & (frame.layer == 1) & (frame["head"] == 3)]
    assert row.rr.item() == profile.rr[4, 1, 3].item()
    assert [file.name for file in path.parent.iterdir()] == ["profile.parquet"]  # nothing unfinished is left


def test_unreadable_profiles_are_refused(tmp_path):
    whole, damaged, other = (tmp_path / f"{name}.parquet" for name in ("whole", "damaged", "other"))
    some_profile().save(whole)
    damaged.write_bytes(whole.read_bytes()[:200])
    pq.write_table(pq.read_table(whole).replace_schema_metadata(None), other)
    short = tmp_path / "short.parquet"
    pq.write_table(pq.read_table(whole).slice(1), short)
    for path in (damaged, other, short, tmp_path / "absent.parquet"):
        with pytest.raises(ValueError, match=f"{path.name}: not a head profile") as error:
            HeadProfile.load(path)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"is a \.parquet file"):
        some_profile().save(tmp_path / "profile.csv")
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        some_profile().save(blocker / "profile.parquet")


def test_impossible_profiles_are_refused():
    with pytest.raises(ValueError, match="kv_heads=3 must divide the 4 heads"):
        some_profile(kv_heads=3)
    with pytest.raises(ValueError, match="got shape"):
        HeadProfile(torch.zeros(0, 2, 4), 1, 0.5, True, 2, 4)
