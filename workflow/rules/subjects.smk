from typing import get_args

from recurformer.study.ablations import COMMON_BETA
from recurformer.study.method import MeasuredScore
from recurformer.study.subject import Subject

ABLATIONS = config["ablations"]
MEASURED_SCORES = set(get_args(MeasuredScore))
LM_EVAL = [
    f"tasks/{name}/ablation_lm_eval.csv"
    for name in config["language"]["tasks"]["names"]
]


def by_mixer(changed):
    """The heads of the highest RA-I, and whole layers, replaced by every mixer."""
    for mixer in [*changed["trained"], *changed["untrained"]]:
        for unit in ["kv_group"] + ["layer"] * (mixer in changed["layers"]):
            if mixer in changed["trained"]:
                for beta in changed["trained_betas"] or ABLATIONS["betas"]:
                    yield Subject("heads", mixer, "ra_i", unit, beta=beta)
            if mixer in changed["untrained"]:
                yield Subject("replaced", mixer, "ra_i", unit)


def matched(task, backbone, file):
    """Measurements of the paper's method, whose cache sizes the eviction methods match."""
    return [
        f"<results>/ablations/{task}/{backbone}/{Subject('heads', 'mamba', 'ra_i', beta=beta)}/{file}"
        for beta in ABLATIONS[task]["matched"]
    ]


def half_of(betas):
    """The share nearest to half of the heads."""
    return min(betas, key=lambda beta: abs(beta - COMMON_BETA))


def by_selector(changed):
    """Other heads replaced, by one mixer."""
    mixer = changed["selected"]
    for by in changed["selectors"]:
        for choice in ABLATIONS["seeds"] if by == "random" else [0]:
            if mixer in changed["untrained"]:
                yield Subject("replaced", mixer, by, choice=choice)
                continue
            for beta in ABLATIONS["betas"]:
                yield Subject("heads", mixer, by, choice=choice, beta=beta)


def measured_on(task, file):
    """A file of every subject that is measured on a task."""
    changed = ABLATIONS[task]
    return measurements_of(
        task,
        file,
        Subject("original"),
        *(
            [Subject("original_trained")]
            if task == "language" and changed["trained"]
            else []
        ),
        *(Subject("evicted", method) for method in ABLATIONS["evictions"]),
        *(
            Subject("combined", method, beta=half_of(changed["matched"]))
            for method in changed["retained"]
        ),
        *(recovered_subjects(shown=True) if task == "language" else []),
        *by_mixer(changed),
        *by_selector(changed),
        *(Subject("pooled", str(kv_heads)) for kv_heads in changed["kv_heads"]),
    )


def trained_on_text(file):
    """A file of every subject that was changed and trained on text, and of the original trained likewise."""
    return [path for path in measured_on("language", file) if "/trained/" in path]


def papers_method(file):
    """A file of the original as it came, and of every model that the study trains on text: the original, and the paper's
    method at each share of heads.
    """
    by, unit = config["selection"]["by"], config["selection"]["unit"]
    return collect(
        "<results>/ablations/language/{backbone}/{subject}/{file}",
        backbone=config["language"]["backbones"],
        subject=[
            Subject("original"),
            *(
                (
                    Subject("heads", "mamba", by, unit, beta=beta)
                    if beta
                    else Subject("original_trained")
                )
                for beta in config["language"]["betas"]
            ),
        ],
        file=file,
    )


def other_sizes():
    """The measurements on HashHop at other sizes."""
    changed = ABLATIONS["hashhop"]
    return measurements_of(
        "hashhop",
        "hashhop_sizes.parquet",
        Subject("original"),
        *(
            Subject("heads", mixer, "ra_i", beta=beta)
            for mixer in ABLATIONS["sizes"]["mixers"]
            if mixer in changed["trained"]
            for beta in changed["trained_betas"] or ABLATIONS["betas"]
        ),
    )


def measurements_of(task, file, *subjects):
    return collect(
        "<results>/ablations/{task}/{backbone}/{subject}/{file}",
        task=task,
        backbone=ABLATIONS[task]["backbones"],
        subject=list(dict.fromkeys(subjects)),
        file=file,
    )


def scored(task):
    """The scores of heads that a task's selectors need."""
    changed = ABLATIONS[task]
    return collect(
        "<results>/ablations/{task}/{backbone}/head_scores.parquet",
        task=task,
        backbone=(
            changed["backbones"]
            if MEASURED_SCORES.intersection(changed["selectors"])
            else []
        ),
    )


def probed_text(wildcards):
    """Text for the scores of heads; HashHop models are scored on HashHop."""
    hashes = wildcards.task == "hashhop" and wildcards.backbone in LEARNS_HASHHOP
    return [] if hashes else "<results>/corpus/articles.parquet"


def score_flags(wildcards, input):
    """The measured scores that a task's selectors need, and the text to read."""
    selectors = ABLATIONS[wildcards.task]["selectors"]
    names = [name for name in selectors if name in MEASURED_SCORES]
    return as_flags({"by": names}) + file_flags(["articles"], wildcards, input)


def studys_own(task, backbone, beta):
    """A model that the study trains whether it has ablations or not."""
    return f"<results>/{task}/{backbone}/beta-{beta}/seed-{config['seed']}/trained"


def original_of(task, backbone):
    """The original that changed models are compared with: trained likewise on HashHop, the backbone itself on text."""
    if task == "language":
        return f"<results>/backbones/{backbone}"
    return studys_own(task, backbone, 0.0)


def is_studys(task, subject):
    """Whether the study itself trains this subject: the paper's own method, at one of its shares of heads."""
    betas = config["betas"] if task == "hashhop" else config["language"]["betas"]
    chosen = config["selection"]
    return subject.is_papers(chosen["by"], chosen["unit"]) and subject.beta in betas


def model_of(task, backbone, subject):
    """The model of a subject that has one of its own; of all others, the original."""
    if subject.kind in {"original_trained", "combined"} or is_studys(task, subject):
        return studys_own(task, backbone, subject.beta)
    if subject.kind == "recovered":
        seed = seeds_of(subject.name)[0]
        return f"<results>/recovered/{backbone}/{subject.name}/beta-{subject.beta}/seed-{seed}/trained"
    if subject.is_trained:
        return f"<results>/ablations/{task}/{backbone}/{subject}/model"
    return original_of(task, backbone)


def measured(task, file):
    """The inputs of a subject's measurement: its model; the ranking of heads that are replaced on the spot; the
    measurements whose cache size evictions match.
    """

    def inputs(wildcards):
        backbone, subject = wildcards.backbone, Subject.parse(wildcards.subject)
        paths = {"checkpoint": model_of(task, backbone, subject)}
        paths |= {"original": original_of(task, backbone)}
        paths |= dict.fromkeys(["profile", "scores", "match"], [])
        if subject.kind == "evicted":
            paths["match"] = matched(task, backbone, file)
        if subject.kind == "replaced":
            paths |= choosing(task, backbone, subject.by)
        return paths

    return inputs


def identity(task):
    """The identity of a subject, as flags of the stages that measure it."""

    def words(wildcards, input):
        subject = Subject.parse(wildcards.subject)
        common = {"name": wildcards.backbone, "seed": config["seed"]}
        common |= {"dtype": config["evaluation_dtype"]}
        return as_flags({**common, **identity_of(task, subject, input)})

    return words


def identity_of(task, subject, input):
    values = subject.identity()
    if subject.kind in {"original", "original_trained"}:
        values = {"trained": task == "hashhop" or subject.is_trained}
    elif subject.kind == "evicted":
        values = {"evict": subject.name, "budgets": ABLATIONS["budgets"]}
        values["match"] = [str(file) for file in input.match] or None
    elif subject.kind == "combined":
        values = {"evict": subject.name, "budgets": ABLATIONS["budgets"]}
        values |= {"trained": True}
    elif subject.kind == "replaced":
        values = {"replace": subject.name, "betas": ABLATIONS["betas"]}
        values |= {"choice": subject.choice}
        values |= {"selection": {"by": subject.by, "unit": subject.unit}}
        values |= {
            file: str(input[file]) for file in ("profile", "scores") if input[file]
        }
        values |= ABLATIONS[task]["window"]
    elif subject.kind == "recovered":
        values |= {"by": config["selection"]["by"], "seed": seeds_of(subject.name)[0]}
    return values


def choosing(task, backbone, by):
    """The inputs of a selector: a profile of recency ratios, and scores where it needs them."""
    scores = f"<results>/ablations/{task}/{backbone}/head_scores.parquet"
    return {
        "profile": profile_for(task, backbone),
        "scores": [scores] if by in MEASURED_SCORES else [],
    }


def chosen_by(wildcards):
    return choosing(wildcards.task, wildcards.backbone, wildcards.by)


def choice_flags(wildcards, input):
    """The choice of heads other than the study's own."""
    choice = {"by": wildcards.by, "unit": wildcards.unit}
    choice |= {"scope": config["selection"]["scope"], "seed": wildcards.choice}
    return as_flags(choice) + file_flags(["scores"], wildcards, input)
