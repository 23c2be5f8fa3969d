"""What the ablations measure: the path of a subject says all of it, and nothing else is one."""

import pytest

from recurformer.study.subject import Subject

SUBJECTS = {
    "original": Subject("original"),
    "original/trained": Subject("original_trained"),
    "evicted/streaming_llm": Subject("evicted", "streaming_llm"),
    "replaced/random-kv_group-2/window": Subject("replaced", "window", "random", choice=2),
    "heads/ra_i-layer-0/beta-0.75/mamba/trained": Subject("heads", "mamba", "ra_i", "layer", beta=0.75),
    "recovered/paper_98k/beta-0.5/trained": Subject("recovered", "paper_98k", beta=0.5),
    "pooled/2/trained": Subject("pooled", "2"),
}


@pytest.mark.parametrize(("path", "subject"), SUBJECTS.items(), ids=SUBJECTS)
def test_a_path_and_its_subject(path, subject):
    assert Subject.parse(path) == subject
    assert str(subject) == path
    assert subject.is_trained == path.endswith("/trained")


def test_a_change_is_the_subject_that_its_training_makes():
    assert str(Subject.parse("heads/ra_i-kv_group-0/beta-0.5/mamba")) == "heads/ra_i-kv_group-0/beta-0.5/mamba/trained"


@pytest.mark.parametrize("path", ["", "heads/ra_i-kv_group-0/mamba", "evicted", "pooled/2/trained/more"])
def test_what_is_no_subject_is_refused(path):
    with pytest.raises(ValueError, match="not a subject"):
        Subject.parse(path)


def test_only_the_papers_mixer_on_the_studys_own_heads_is_the_papers_method():
    own = {path for path, subject in SUBJECTS.items() if subject.is_papers("ra_i", "layer")}
    assert own == {"heads/ra_i-layer-0/beta-0.75/mamba/trained"}
    assert not Subject("heads", "mamba", "random", choice=1, beta=0.75).is_papers("random", "kv_group")


def test_measurements_of_a_changed_model_say_how_it_was_changed():
    said = {path: subject.identity() for path, subject in SUBJECTS.items() if subject.identity()}
    assert said == {
        "heads/ra_i-layer-0/beta-0.75/mamba/trained": {
            "family": "layers", "method": "mamba", "setting": 0.75, "by": "ra_i", "trained": True, "choice": 0,
        },
        "recovered/paper_98k/beta-0.5/trained": {
            "family": "recovered", "method": "paper_98k", "setting": 0.5, "trained": True,
        },
        "pooled/2/trained": {"family": "pooled", "method": "mean", "trained": True},
    }  # fmt: skip
