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


def asked_scores(wildcards):
    """The measured scores that a task's selectors need."""
    selectors = ABLATIONS[wildcards.task]["selectors"]
    names = [name for name in selectors if name in MEASURED_SCORES]
    return ABLATIONS["scores"] | ({"by": names} if names else {})


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


def subject_words(wildcards, input):
    """What is measured, as options of the stages that measure it."""
    subject = Subject.parse(wildcards.subject)
    recovered = subject.kind == "recovered"
    named = {"name": wildcards.backbone, "subject": wildcards.subject}
    named["seed"] = seeds_of(subject.name)[0] if recovered else config["seed"]
    named["dtype"] = config["evaluation_dtype"]
    match = ["--match", *input.match] if input.match else []
    return words(named) + file_words(["profile", "scores"], wildcards, input) + match


def change_of(task):
    """The settings of a subject's change, where the stage that measures it makes the change."""

    def of_job(wildcards):
        kind = Subject.parse(wildcards.subject).kind
        if kind in {"evicted", "combined"}:
            return {"budgets": ABLATIONS["budgets"]}
        if kind == "replaced":
            return {"betas": ABLATIONS["betas"], "window": ABLATIONS[task]["window"]}
        return (
            {"recovered_by": config["selection"]["by"]} if kind == "recovered" else {}
        )

    return of_job


def choosing(task, backbone, by):
    """The inputs of a selector: a profile of recency ratios, and scores where it needs them."""
    scores = f"<results>/ablations/{task}/{backbone}/head_scores.parquet"
    return {
        "profile": profile_for(task, backbone),
        "scores": [scores] if by in MEASURED_SCORES else [],
    }


def chosen_by(wildcards):
    return choosing(wildcards.task, wildcards.backbone, wildcards.by)


def choice_of_heads(wildcards):
    """The choice of heads other than the study's own."""
    choice = {"by": wildcards.by, "unit": wildcards.unit}
    return choice | {"scope": config["selection"]["scope"]}
