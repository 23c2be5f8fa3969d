"""Through the hub's own client, in a process of its own, against a server that answers as the hub does."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from recurformer.corpora.wikipedia import draw_articles
from tests.corpora.hub_server import REPO, REVISION, Answer, Hub, checksum, running

CHUNK = 10 * 1024 * 1024  # bytes that the client writes at a time
FILES = {
    "config.json": b"{}\n",
    "model.safetensors": bytes(range(256)) * (12 * 4096),  # 12 MiB
    "pytorch_model.bin": b"the same weights once more",
}
FETCH = f"""
import resource, sys
from recurformer.corpora.hub import fetch_snapshot
if len(sys.argv) > 1:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
try:
    print(fetch_snapshot({REPO!r}, {REVISION!r}, ["*.json", "*.safetensors"]))
except ValueError as error:
    sys.exit(f"refused: {{error}}")
"""
READ = f"""
import sys
from recurformer.corpora.wikipedia import load_hub_articles
try:
    print(*load_hub_articles({REVISION!r}, 4, minimum_characters=21).title)
except ValueError as error:
    sys.exit(f"refused: {{error}}")
"""
CARD = b"---\nconfigs:\n- config_name: 20231101.en\n  data_files: 20231101.en/train-*\n---\n"


pytestmark = pytest.mark.slow


@pytest.fixture
def hub():
    with running(Hub(FILES)) as hub:
        yield hub


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def answer(hub, home, code, *words, **variables):
    """What a new process printed, or what it said when it refused."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    own = {"HF_HOME": str(home), "HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
    answer = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=inherited | own | variables, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if answer.returncode == 0:
        return answer.stdout.strip()
    said = answer.stderr.rstrip().splitlines()[-1]
    assert said.startswith("refused: "), answer.stderr
    return said.removeprefix("refused: ")


def fetch(hub, home, *words, **variables):
    """The folder that a new process got, or what it said when it refused."""
    said = answer(hub, home, FETCH, *words, **variables)
    return Path(said) if Path(said).is_dir() else said


def storage(home):
    return home / "hub" / f"models--{REPO.replace('/', '--')}"


def test_fetched_once_then_without_any_network(hub, home):
    folder = fetch(hub, home)
    assert folder == storage(home) / "snapshots" / REVISION
    wanted = {"config.json", "model.safetensors"}
    assert {path.name for path in folder.iterdir()} == wanted
    assert {path.name for path in (storage(home) / "blobs").iterdir()} == {checksum(n, FILES[n]) for n in wanted}
    assert all((folder / name).read_bytes() == FILES[name] for name in wanted)
    hub.asked.clear()
    assert fetch(hub, home) == fetch(hub, home, HF_HUB_OFFLINE="1") == folder
    assert not hub.asked


def test_a_lost_connection_is_taken_up_where_it_broke(hub, home):
    hub.lost_after["model.safetensors"] = CHUNK + 1000
    folder = fetch(hub, home)
    asked = [where for name, where in hub.downloads() if name == "model.safetensors"]
    assert asked == [None, f"bytes={CHUNK}-"]
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_what_was_complete_is_not_fetched_again(hub, home):
    hub.refused["model.safetensors"] = Answer(400)
    assert fetch(hub, home) == f"the hub answers 400 for {REPO}: try again later, what is complete is kept"
    hub.refused.clear()
    hub.asked.clear()
    fetch(hub, home)
    assert [name for name, _ in hub.downloads()] == ["model.safetensors"]


def test_a_gated_model_opens_to_the_token_in_the_variable(hub, home):
    hub.token = "hf_right"
    gated = f"{REPO} is gated: accept its licence at https://huggingface.co/{REPO} and set HF_TOKEN"
    assert fetch(hub, home).startswith(gated)
    assert fetch(hub, home, HF_TOKEN="hf_wrong").startswith(gated)
    assert (fetch(hub, home, HF_TOKEN="hf_right") / "config.json").is_file()


@pytest.mark.parametrize(
    ("where", "answer", "said"),
    [
        ("config.json", Answer(403, "GatedRepo", "Your request is awaiting a review."), "is gated: accept its licence"),
        ("tree", Answer(401, "RepoNotFound", "Repository not found"), f"the hub has no model {REPO}, or it is private"),
        ("tree", Answer(404, "RevisionNotFound", "Invalid rev id"), f"has no revision {REVISION}: correct it"),
        (
            "tree",
            Answer(401, "", "Invalid credentials in Authorization header"),
            f"the hub refuses access to {REPO} (401): set HF_TOKEN to a valid token",
        ),
    ],
)
def test_what_to_do_is_said_in_one_line(hub, home, where, answer, said):
    hub.refused[where] = answer
    assert said in fetch(hub, home, HF_TOKEN="hf_some")


def test_no_network_and_nothing_in_the_cache(home):
    nowhere = Hub(FILES, address="http://127.0.0.1:9")
    missing = f"{REPO} at {REVISION} is not, or not wholly, in the cache ({home / 'hub'})"
    assert fetch(nowhere, home).startswith(f"{missing} and the hub cannot be reached (")
    assert fetch(nowhere, home, HF_HUB_OFFLINE="1") == f"{missing} and HF_HUB_OFFLINE forbids downloading it"


def test_a_cache_with_a_part_only(hub, home):
    (fetch(hub, home) / "model.safetensors").unlink()
    assert f"{REPO} at {REVISION} is not, or not wholly, in the cache" in fetch(hub, home, HF_HUB_OFFLINE="1")


def test_a_full_disk_leaves_no_file_that_looks_whole(hub, home):
    said = fetch(hub, home, str(CHUNK // 2))
    assert said.startswith(f"cannot write {REPO} to the cache ({home / 'hub'}): File too large")
    assert {path.name for path in storage(home).glob("snapshots/*/*")} <= {"config.json"}
    assert (fetch(hub, home) / "model.safetensors").read_bytes() == FILES["model.safetensors"]


@pytest.fixture
def wikipedia():
    """60 articles of 1, 2, 3 … characters in two files, as the hub has them, and their files."""
    rows = [{"id": str(n), "url": f"u{n}", "title": f"T{n:04}", "text": "ä" * (n + 1)} for n in range(60)]
    parts = {f"20231101.en/train-0000{part}-of-00002.parquet": rows[30 * part :][:30] for part in range(2)}
    with running(
        Hub({name: pd.DataFrame(part).to_parquet() for name, part in parts.items()} | {"README.md": CARD})
    ) as hub:
        yield hub


def test_articles_are_drawn_from_the_stream_of_all_files_at_one_commit(wikipedia, home):
    expected = [title for title, _ in sorted(draw_articles([(f"T{n:04}", "") for n in range(20, 60)], 4, seed=0))]
    wikipedia.lost_after["20231101.en/train-00001-of-00002.parquet"] = 1000
    assert answer(wikipedia, home, READ).split() == expected
    parts = [name for name, _ in wikipedia.downloads() if name.endswith(".parquet")]
    assert sorted(set(parts)) == sorted(wikipedia.files)[:2] and len(parts) > 2  # once more after the loss
    assert not [path for path in home.rglob("*") if path.suffix == ".parquet" or path.stat().st_size > 10_000]


@pytest.mark.parametrize(
    ("refused", "variables", "said"),
    [
        ({"README.md": Answer(401, "GatedRepo")}, {}, "Dataset 'wikimedia/wikipedia' is a gated dataset on the Hub."),
        ({"README.md": Answer(404, "RepoNotFound")}, {}, "Dataset 'wikimedia/wikipedia' doesn't exist on the Hub"),
        ({"README.md": Answer(404, "RevisionNotFound")}, {}, f"Revision '{REVISION}' doesn't exist for dataset"),
        ({}, {"HF_HUB_OFFLINE": "1"}, "Couldn't reach 'wikimedia/wikipedia' on the Hub (OfflineModeIsEnabled)"),
    ],
)
def test_a_data_set_that_cannot_be_read_is_one_line(wikipedia, home, refused, variables, said):
    wikipedia.refused |= refused
    begin = f"cannot read the data set wikimedia/wikipedia at {REVISION} of the hub: "
    assert answer(wikipedia, home, READ, **variables).startswith(begin + said)


def test_a_branch_of_a_data_set_is_refused(wikipedia, home):
    said = answer(wikipedia, home, READ.replace(REVISION, "main"))
    assert said == "revision of wikimedia/wikipedia is 'main'; it must be a commit of 40 hexadecimal digits"
    assert not wikipedia.asked
