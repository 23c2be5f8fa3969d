from typing import get_args

from recurformer.study.method import MeasuredScore

ABLATIONS = config["ablations"]
MEASURED_SCORES = set(get_args(MeasuredScore))


def trained_subject(by, unit, choice, beta, mixer):
    return f"heads/{by}-{unit}-{choice}/beta-{beta}/{mixer}/trained"


def recovered_subject(arm, beta):
    return f"recovered/{arm}/beta-{beta}/trained"


def recovered(file, arms=""):
    """A file of every recipe other than the paper's, or of those whose names begin with `arms`."""
    return [
        f"<results>/recovered/{backbone}/{arm}/beta-{beta}/seed-{seed}/{file}"
        for backbone in config["language"]["backbones"]
        for arm, recipe in (RECOVERY["arms"] if RECOVERY else {}).items()
        if arm.startswith(arms)
        for beta in recipe["betas"] or filter(None, config["language"]["betas"])
        for seed in seeds_of(arm)
    ]


def seeds_of(arm):
    """The first is that of the model that is measured on other tasks."""
    return RECOVERY["arms"][arm]["seeds"] or [config["seed"]]


def untrained_subject(by, unit, choice, mixer):
    """All shares of replaced heads at once: no training stands between them."""
    return f"replaced/{by}-{unit}-{choice}/{mixer}"


def by_mixer(changed):
    """The heads of the highest RA-I, and whole layers, replaced by every mixer."""
    for mixer in [*changed["trained"], *changed["untrained"]]:
        for unit in ["kv_group"] + ["layer"] * (mixer in changed["layers"]):
            if mixer in changed["trained"]:
                for beta in changed["trained_betas"] or ABLATIONS["betas"]:
                    yield trained_subject("ra_i", unit, 0, beta, mixer)
            if mixer in changed["untrained"]:
                yield untrained_subject("ra_i", unit, 0, mixer)


def matched(task, backbone, file):
    """Measurements of the paper's method, whose cache the eviction methods keep too."""
    return [
        f"<results>/ablations/{task}/{backbone}/{trained_subject('ra_i', 'kv_group', 0, beta, 'mamba')}/{file}"
        for beta in ABLATIONS[task]["matched"]
    ]


def by_selector(changed):
    """Other heads replaced, by one mixer."""
    mixer = changed["selected"]
    for by in changed["selectors"]:
        for choice in ABLATIONS["seeds"] if by == "random" else [0]:
            if mixer in changed["untrained"]:
                yield untrained_subject(by, "kv_group", choice, mixer)
                continue
            for beta in ABLATIONS["betas"]:
                yield trained_subject(by, "kv_group", choice, beta, mixer)


def measured_on(task, file):
    """A file of everything that is measured on a task."""
    changed = ABLATIONS[task]
    return measurements_of(
        task,
        file,
        "original",
        *(["original/trained"] if task == "language" and changed["trained"] else []),
        *(f"evicted/{method}" for method in ABLATIONS["evictions"]),
        *(recovered_subjects(shown=True) if task == "language" else []),
        *by_mixer(changed),
        *by_selector(changed),
        *(f"pooled/{kv_heads}/trained" for kv_heads in changed["kv_heads"]),
    )


def recovered_subjects(shown=False):
    """What every other recipe than the paper's gave, at the shares of heads at which mixers are trained; `shown`:
    without those that are compared with each other alone, at equal bytes.
    """
    betas = ABLATIONS["language"]["trained_betas"] or ABLATIONS["betas"]
    for arm, recipe in (RECOVERY["arms"] if RECOVERY else {}).items():
        own = recipe["betas"] or config["language"]["betas"]
        if shown and arm.startswith(EQUAL_BYTES):
            continue
        yield from (
            recovered_subject(arm, beta) for beta in betas if beta in own and beta
        )


def of_recovered(file):
    """A file of what recovers by any recipe, and of the original before and after the same training."""
    betas = ABLATIONS["language"]["trained_betas"] or ABLATIONS["betas"]
    by, unit = config["selection"]["by"], config["selection"]["unit"]
    return measurements_of(
        "language",
        file,
        *(["original", "original/trained"] if RECOVERY else []),
        *(trained_subject(by, unit, 0, beta, "mamba") for beta in betas if RECOVERY),
        *recovered_subjects(),
    )


def trained_on_text(file):
    """A file of everything that was changed and trained on text, and of the original trained likewise."""
    return [path for path in measured_on("language", file) if "/trained/" in path]


def other_sizes():
    """What is measured on HashHop at other sizes."""
    changed = ABLATIONS["hashhop"]
    return measurements_of(
        "hashhop",
        "hashhop_sizes.csv",
        "original",
        *(
            trained_subject("ra_i", "kv_group", 0, beta, mixer)
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
    """Which scores a task's selectors need, of those that are no ranking of the profile, and the text to read."""
    selectors = ABLATIONS[wildcards.task]["selectors"]
    names = [name for name in selectors if name in MEASURED_SCORES]
    text = {"articles": str(input.articles)} if input.articles else {}
    return as_flags({"by": names, **text})


def original_of(task, backbone):
    """What changed models are compared with: trained likewise on HashHop, the backbone itself on text."""
    if task == "language":
        return f"<results>/backbones/{backbone}"
    return f"<results>/hashhop/{backbone}/beta-0.0/seed-{config['seed']}/trained"


def trained_model(task, backbone, subject):
    """A model that was changed and trained; of the paper's own method the study's, where it has trained one."""
    _, choice, beta, mixer, _ = subject.split("/")
    betas = config["betas"] if task == "hashhop" else config["language"]["betas"]
    usual = config["selection"]
    own = (choice, mixer) == (f"{usual['by']}-{usual['unit']}-0", "mamba")
    if own and float(beta.removeprefix("beta-")) in betas:
        return f"<results>/{task}/{backbone}/{beta}/seed-{config['seed']}/trained"
    return f"<results>/ablations/{task}/{backbone}/{subject}/model"


def measured_models(task, wildcards, file):
    """What a subject is measured on; for heads that are replaced on the spot also what chooses them, for evictions the
    same measurements of what they are to match.
    """
    backbone, subject = wildcards.backbone, wildcards.subject
    original = original_of(task, backbone)
    kind, *names = subject.split("/")
    found = {"checkpoint": original, "original": original}
    found |= {"profile": [], "scores": [], "match": []}
    if subject == "original/trained":
        found["checkpoint"] = (
            f"<results>/{task}/{backbone}/beta-0.0/seed-{config['seed']}/trained"
        )
    elif kind == "heads":
        found["checkpoint"] = trained_model(task, backbone, subject)
    elif kind == "recovered":
        arm, beta, _ = names
        found["checkpoint"] = (
            f"<results>/recovered/{backbone}/{arm}/{beta}/seed-{seeds_of(arm)[0]}/trained"
        )
    elif kind == "pooled":
        found["checkpoint"] = f"<results>/ablations/{task}/{backbone}/{subject}/model"
    elif kind == "evicted":
        found["match"] = matched(task, backbone, file)
    elif kind == "replaced":
        found |= choosing(task, backbone, names[0].rsplit("-", 2)[0])
    return found


def needle_models(wildcards):
    return measured_models("language", wildcards, "needle.csv")


def continuation_models(wildcards):
    return measured_models("language", wildcards, "continuation.csv")


def lm_eval_models(wildcards):
    return measured_models("language", wildcards, "ablation_lm_eval.csv")


def hashhop_models(wildcards):
    return measured_models("hashhop", wildcards, "ablation_hashhop.csv")


def text_identity(wildcards, input):
    return identity("language", wildcards, input)


def hashhop_identity(wildcards, input):
    return identity("hashhop", wildcards, input)


def identity(task, wildcards, input):
    """What a subject is, as flags of the stages that measure it."""
    kind, *names = wildcards.subject.split("/")
    said = {"name": wildcards.backbone, "seed": config["seed"]}
    said |= {"dtype": config["evaluation_dtype"]}
    if kind == "original":
        said |= {"trained": task == "hashhop" or names == ["trained"]}
    elif kind == "evicted":
        said |= {"evict": names[0], "budgets": ABLATIONS["budgets"]}
        said |= {"match": [str(file) for file in input.match]} if input.match else {}
    elif kind == "pooled":
        said |= {"family": kind, "method": "mean", "trained": True}
    elif kind == "replaced":
        (by, unit, choice), mixer = names[0].rsplit("-", 2), names[1]
        said |= {"replace": mixer, "betas": ABLATIONS["betas"], "choice": choice}
        said |= {"selection": {"by": by, "unit": unit}, **files(input)}
        said |= ABLATIONS[task]["window"]
    elif kind == "recovered":
        arm, beta = names[0], names[1].removeprefix("beta-")
        said |= {"family": kind, "method": arm, "setting": beta, "trained": True}
        said |= {"by": config["selection"]["by"], "seed": seeds_of(arm)[0]}
    elif kind == "heads":
        (by, unit, choice), beta, mixer = names[0].rsplit("-", 2), names[1], names[2]
        said |= {"family": "layers" if unit == "layer" else "mixer", "method": mixer}
        said |= {"setting": beta.removeprefix("beta-"), "by": by, "trained": True}
        said |= {"choice": choice}
    return as_flags(said)


def choosing(task, backbone, by):
    """What a selector reads: a profile of recency ratios, and scores where it needs them."""
    scores = f"<results>/ablations/{task}/{backbone}/head_scores.parquet"
    return {
        "profile": profile_for(task, backbone),
        "scores": [scores] if by in MEASURED_SCORES else [],
    }


def chosen_by(wildcards):
    return choosing(wildcards.task, wildcards.backbone, wildcards.by)


def files(input):
    """The files of `choosing` that are there, by flag."""
    given = {"profile": input.profile, "scores": input.scores}
    return {flag: str(file) for flag, file in given.items() if file}


def scores_flag(wildcards, input):
    return as_flags({"scores": str(input.scores)}) if input.scores else []


def window_flags(wildcards):
    return as_flags(ABLATIONS[wildcards.task]["window"])
