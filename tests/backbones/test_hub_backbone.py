import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from recurformer.backbones import hub, make_random, open_backbone
from recurformer.corpora.package import ResourceError

SETTINGS = {"source": "hub", "repo": "meta-llama/Llama-2-7b-hf", "revision": "0" * 40, "cache_dir": "unused"}


def http_error(kind):
    """The hub's error without the HTTP response that its constructor wants, whose library differs between versions."""
    return kind.__new__(kind, "no access\nmore")


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        (
            lambda: http_error(GatedRepoError),
            "is gated: accept its licence at https://huggingface.co/meta-llama/Llama-2-7b-hf and set HF_TOKEN",
        ),
        (lambda: http_error(RepositoryNotFoundError), "the hub has no model meta-llama/Llama-2-7b-hf"),
        (
            lambda: LocalEntryNotFoundError("no file"),
            "is not in the cache and the hub cannot be reached: check the network",
        ),
        (lambda: OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE forbids"),
        (lambda: RuntimeError("odd\nthing"), "cannot load meta-llama/Llama-2-7b-hf at revision 0+: wrapped"),
    ],
)
def test_what_to_do_is_said_in_one_line(monkeypatch, cause, message):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

    def from_pretrained(repo, **options):
        raise OSError("wrapped by transformers\nin many lines") from cause()

    monkeypatch.setattr(hub.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    with pytest.raises(ResourceError, match=message) as caught:
        open_backbone(SETTINGS)
    assert "\n" not in str(caught.value)


def test_the_pinned_revision_reaches_model_and_tokenizer(monkeypatch):
    asked = []

    def from_pretrained(repo, **options):
        asked.append((repo, options["revision"], options["cache_dir"]))
        return make_random()

    monkeypatch.setattr(hub.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    monkeypatch.setattr(hub.AutoTokenizer, "from_pretrained", from_pretrained)
    open_backbone(SETTINGS)
    assert asked == [("meta-llama/Llama-2-7b-hf", "0" * 40, "unused")] * 2


@pytest.mark.parametrize("revision", ["main", "", "0" * 39, "v1.0"])
def test_a_revision_that_can_move_is_refused(revision):
    with pytest.raises(ValueError, match="must be a commit of 40 hexadecimal digits"):
        open_backbone(SETTINGS | {"revision": revision})


def test_really_offline(monkeypatch, tmp_path):
    """Through transformers' own errors: with the hub switched off and an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ResourceError, match="is not in the cache"):
        open_backbone(SETTINGS | {"cache_dir": str(tmp_path)})
