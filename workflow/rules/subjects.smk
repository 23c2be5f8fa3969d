# Which models a study trains and measures: every one is a subject, by the name and path that it has there.
from typing import get_args

from recurformer.study.ablations import COMMON_BETA
from recurformer.study.method import MEASURED, MIXER_PRICE, MeasuredScore, Untrained
from recurformer.study.subject import FORMS, Subject

SUBJECT_FOLDERS = sorted({form.split("/")[0] for form in FORMS.values()})
ABLATIONS = config["ablations"]
MEASURED_SCORES = set(get_args(MeasuredScore))
NOTHING_TO_LEARN = set(get_args(Untrained))
# The text from which mixers that learn are solved in closed form.
SOLVED = {
    "samples": ABLATIONS["mixer_prices"]["solved_windows"],
    "tokens": ABLATIONS["prices"]["tokens"],
}


def lm_eval_of(subjects, backbones=None):
    """The tasks of lm-eval, each a file, of the subjects of some backbones."""
    return [
        file_of("language", backbone, subject, f"tasks/{task}/ablation_lm_eval.csv")
        for backbone in backbones or ABLATIONS["language"]["backbones"]
        for subject in dict.fromkeys(subjects(backbone))
        for task in LANGUAGE[backbone]["tasks"]["names"]
    ]


def arms_of(backbone):
    """The recipes other than the paper's, by name."""
    return (LANGUAGE[backbone]["recovery"] or {"arms": {}})["arms"]


def papers(beta, seed):
    """The paper's own method on the heads that the study chooses, at random by the training's seed; at 0 the original
    trained likewise.
    """
    by, unit = config["selection"]["by"], config["selection"]["unit"]
    choice = seed if by == "random" else 0
    if not beta:
        return Subject("original_trained")
    return Subject("heads", "mamba", by, unit, choice, beta)


def papers_on_text(backbone):
    """The paper's method on text at each fraction of heads, at the study's seed."""
    return [papers(beta, config["seed"]) for beta in LANGUAGE[backbone]["betas"]]


def asked_by_lm_eval(backbone):
    """The original, and the paper's method on text; where nothing that is compared is trained, what is bought by price."""
    changed = ABLATIONS["language"]
    priced = [Subject("priced", name) for name in changed["priced"]]
    return [
        Subject("original"),
        *(priced if priced and not changed["trained"] else papers_on_text(backbone)),
    ]


def nearest_to_common(betas):
    """The fraction of replaced heads that is nearest to that of all comparisons, if any are replaced."""
    return sorted(filter(None, betas), key=lambda beta: abs(beta - COMMON_BETA))[:1]


def matched(beta):
    """The model whose cache evictions match, and from whose retained heads the combined methods evict."""
    return Subject("heads", "mamba", "ra_i", beta=beta)


def subjects_of(backbone, arm):
    """What a recipe other than the paper's gives, at each of its fractions of heads."""
    betas = arms_of(backbone)[arm]["betas"] or filter(None, LANGUAGE[backbone]["betas"])
    return [Subject("recovered", arm, beta=beta) for beta in betas]


def seeds_of(block):
    """One run for each, or one with the study's. Of a recipe the first is that of the model that is measured on other
    tasks.
    """
    return block["seeds"] or [config["seed"]]


def recovered_files(file, arms=""):
    """A file of every run of every other recipe, or of those whose names begin with `arms`."""
    return [
        file_of("language", backbone, subject, file, seed)
        for backbone in LANGUAGE
        for arm, recipe in arms_of(backbone).items()
        if arm.startswith(arms)
        for subject in subjects_of(backbone, arm)
        for seed in seeds_of(recipe)
    ]


def trained_betas(task):
    """The fractions of heads at which mixers are trained."""
    return ABLATIONS[task]["trained_betas"] or ABLATIONS["betas"]


def recovered_subjects(backbone, shown=False):
    """What every other recipe than the paper's gave, at the fractions of heads at which mixers are trained; `shown`:
    without those that are compared with each other alone, at equal bytes.
    """
    return [
        subject
        for arm in arms_of(backbone)
        if not (shown and arm.startswith(EQUAL_BYTES))
        for subject in subjects_of(backbone, arm)
        if subject.beta in trained_betas("language")
    ]


def recovering(backbone):
    """What recovers by any recipe, and the original before and after the same training."""
    if not (LANGUAGE[backbone]["recovery"] and LANGUAGE[backbone]["betas"]):
        return []
    methods = [papers(beta, config["seed"]) for beta in trained_betas("language")]
    return [*ORIGINALS, *methods, *recovered_subjects(backbone)]


ORIGINALS = [Subject("original"), Subject("original_trained")]


def by_mixer(task):
    """The heads of the highest RA-I, whole layers and single heads, replaced by every mixer."""
    changed = ABLATIONS[task]
    units = {"layer": changed["layers"], "head": changed["single"]}
    for mixer in [*changed["trained"], *changed["untrained"]]:
        for unit in ["kv_group", *(unit for unit in units if mixer in units[unit])]:
            if mixer in changed["trained"]:
                for beta in trained_betas(task):
                    yield Subject("heads", mixer, "ra_i", unit, beta=beta)
            if mixer in changed["untrained"]:
                yield Subject("replaced", mixer, "ra_i", unit)


def by_selector(changed):
    """Other heads replaced, by one mixer; those where a mixer costs least, by that one."""
    for by in changed["selectors"]:
        priced = by == MIXER_PRICE
        mixer = (
            ABLATIONS["mixer_prices"]["mixers"][0] if priced else changed["selected"]
        )
        for choice in ABLATIONS["seeds"] if by == "random" else [0]:
            if mixer in changed["untrained"]:
                yield Subject("replaced", mixer, by, choice=choice)
                continue
            for beta in ABLATIONS["betas"]:
                yield Subject("heads", mixer, by, choice=choice, beta=beta)


def compared(task, backbone):
    """The subjects of the ablations, on text those of a backbone. Text is read by the original as it came too; on
    HashHop it is trained likewise.
    """
    changed = ABLATIONS[task]
    on_text = task == "language"
    untouched, alike = ORIGINALS
    return [
        *([untouched] if on_text else []),
        *([alike] if changed["trained"] or not on_text else []),
        *(Subject("evicted", method) for method in ABLATIONS["evictions"]),
        *(
            Subject("combined", method, beta=beta)
            for method in changed["retained"]
            for beta in nearest_to_common(changed["matched"])
        ),
        *(recovered_subjects(backbone, shown=True) if on_text else []),
        *by_mixer(task),
        *by_selector(changed),
        *(Subject("priced", name) for name in changed["priced"]),
        *(Subject("pooled", str(kv_heads)) for kv_heads in changed["kv_heads"]),
    ]


def read_by_position(backbone):
    """The original, and the first of what is bought by price, where a study has any."""
    priced = [Subject("priced", name) for name in ABLATIONS["language"]["priced"][:1]]
    return [Subject("original"), *priced] if priced else []


def read_long(backbone):
    """What is compared after long prompts: nothing there is trained."""
    long = ABLATIONS["long_inputs"]
    families = {"priced": long["priced"], "evicted": long["evictions"]}
    changed = [
        Subject(kind, name) for kind, names in families.items() for name in names
    ]
    return [Subject("original"), *changed]


def prices_after_long_prompts(wildcards):
    """The settings of the price list with which all tokens of a long prompt and of what follows it are counted."""
    asked = ABLATIONS["long_inputs"]["continuation"]
    return ABLATIONS["prices"] | {"tokens": asked["prompt"] + asked["tokens"]}


def trained_on_text(backbone):
    """The subjects of the ablations on text that have a trained model."""
    return [one for one in compared("language", backbone) if one.is_trained]


def of_other_sizes(backbone):
    """The subjects of a backbone that are measured on HashHop at other sizes."""
    trained = [
        mixer
        for mixer in ABLATIONS["sizes"]["mixers"]
        if mixer in ABLATIONS["hashhop"]["trained"]
    ]
    return [
        Subject("original_trained"),
        *(
            Subject("heads", mixer, "ra_i", beta=beta)
            for mixer in trained
            for beta in trained_betas("hashhop")
        ),
        *(Subject("evicted", method) for method in ABLATIONS["sizes"]["evictions"]),
    ]


def file_of(task, backbone, subject, file, seed=None):
    """A file of a subject; unless another seed is named, with the study's, or the first of a recipe's own."""
    if seed is None:
        seed = (
            seeds_of(arms_of(backbone)[subject.name])[0]
            if subject.kind == "recovered"
            else config["seed"]
        )
    return f"<results>/{task}/{backbone}/{subject}/seed-{seed}/{file}"


def in_trained_original(task, backbone, subject):
    """Whether what is changed without training is changed in an original trained likewise: on HashHop, and where tokens
    are evicted from a small model of text.
    """
    evicts = subject.kind == "evicted" and backbone in LEARNS_TEXT
    return task == "hashhop" or evicts


def training_seeds(task, backbone, subject):
    """Those for which the ablations measure a subject: one training decides nothing. What is changed without any training
    is measured once. A random choice has its own.
    """
    trained_here = subject.kind == "combined" or (
        subject.is_trained and subject.kind != "recovered"
    )
    if subject.by == "random" or not (
        trained_here or in_trained_original(task, backbone, subject)
    ):
        return [None]
    return seeds_of(LANGUAGE[backbone] if task == "language" else config["hashhop"])


def measurements_of(task, subjects, file):
    """A file of each subject of the backbones that the ablations measure; `subjects` are those of one on text."""
    return [
        file_of(task, backbone, subject, file, seed)
        for backbone in ABLATIONS[task]["backbones"]
        for subject in dict.fromkeys(subjects(backbone))
        for seed in training_seeds(task, backbone, subject)
    ]


def on_text(key):
    """A setting of the backbone on text."""
    return lambda wildcards: LANGUAGE[wildcards.backbone][key]


def processes_of(wildcards):
    """Those of a training: each keeps a core busy."""
    return config["distributed"].get(wildcards.backbone, {}).get("processes", 1)


def threads_of_training(wildcards):
    """Two trainings of small models side by side are faster than one after the other on twice the threads."""
    return max(processes_of(wildcards), 1 if wildcards.backbone in LEARNS_TEXT else 4)


def of_curve(key):
    """How a training on text measures its model meanwhile."""
    return lambda wildcards: (LANGUAGE[wildcards.backbone]["recovery"] or {}).get(key)


def probed_text(wildcards):
    """Text for the scores of heads; HashHop models are scored on HashHop."""
    hashes = wildcards.task == "hashhop" and wildcards.backbone in LEARNS_HASHHOP
    return [] if hashes else "<results>/corpus/articles.parquet"


def asked_scores(wildcards):
    """The measured scores that a task's selectors need."""
    selectors = ABLATIONS[wildcards.task]["selectors"]
    names = [name for name in selectors if name in MEASURED_SCORES]
    return ABLATIONS["scores"] | ({"by": names} if names else {})


def model_of(task, backbone, subject, seed):
    """The model of a subject that has one of its own; of all others what is changed while it is measured: an original
    trained likewise, or the backbone itself.
    """
    if subject.kind == "original":
        return base_of(task, backbone)
    if subject.kind == "combined":
        subject = matched(subject.beta)
    elif not subject.is_trained and in_trained_original(task, backbone, subject):
        subject = Subject("original_trained")
    if subject.is_trained:
        return file_of(task, backbone, subject, "trained", seed)
    return base_of(task, backbone)


def before_training(task):
    """The model that a training changes: the converted one, or for the original the one that others are made of."""

    def of_job(wildcards):
        subject = Subject.parse(wildcards.change)
        if subject.kind == "original_trained":
            return base_of(task, wildcards.backbone)
        return file_of(task, wildcards.backbone, subject, "converted", wildcards.seed)

    return of_job


def arm_of(wildcards):
    """How measurements during a training on text name its recipe."""
    subject, seed = Subject.parse(wildcards.change), int(wildcards.seed)
    if subject == papers(subject.beta, seed):
        return "paper" if subject.beta else "original"
    return str(subject)


def heads_of(backbone, subject):
    """The choice of the heads that a subject replaces on text."""
    choice = f"{subject.by}-{subject.unit}-{subject.choice}/beta-{subject.beta}"
    return f"<results>/language/{backbone}/heads/{choice}/heads.json"


def replaced_heads(wildcards):
    """The heads of a subject that replaces some."""
    subject = Subject.parse(wildcards.change)
    return heads_of(wildcards.backbone, subject) if subject.kind == "heads" else []


def changed_beta(wildcards):
    """The fraction of heads that a trained subject replaces."""
    return Subject.parse(wildcards.change).beta


def window_of(wildcards):
    """The window of the mixers that may have one; the paper's models do not depend on it."""
    mixer = wildcards.get("mixer") or Subject.parse(wildcards.change).name
    task = wildcards.get("task", "language")
    return {} if mixer == "mamba" else ABLATIONS[task]["window"]


def measured(task, file="", prices="prices.parquet"):
    """The inputs of a subject's measurement: its model; the ranking of heads that are replaced on the spot, or the list of
    prices by which is bought; the measurements of the paper's method, if any are named, whose cache sizes evictions match.
    """

    def inputs(wildcards):
        backbone, seed = wildcards.backbone, wildcards.seed
        subject = Subject.parse(wildcards.subject)
        paths = {"checkpoint": model_of(task, backbone, subject, seed)}
        paths |= {"original": base_of(task, backbone)}
        if subject.kind == "evicted" and file:
            paths["match"] = [
                file_of(task, backbone, matched(beta), file, seed)
                for beta in ABLATIONS[task]["matched"]
            ]
        if subject.kind == "priced":
            paths["prices"] = f"<results>/language/{backbone}/{prices}"
        if subject.kind == "replaced":
            paths |= choosing(task, backbone, subject.by)
        return paths

    return inputs


def change_of(task, block=ABLATIONS):
    """The settings of a subject's change, where the stage that measures it makes the change; the budgets are those of
    a block.
    """

    def of_job(wildcards):
        subject = Subject.parse(wildcards.subject)
        kind = subject.kind
        if kind in {"evicted", "combined", "priced"}:
            return {"budgets": block["budgets"]}
        if kind == "replaced":
            learns = subject.name not in NOTHING_TO_LEARN
            change = {"betas": ABLATIONS["betas"], "window": ABLATIONS[task]["window"]}
            solved = {"mamba": config["mamba"], "solved": SOLVED}
            return change | (solved if learns else {})
        return (
            {"recovered_by": config["selection"]["by"]} if kind == "recovered" else {}
        )

    return of_job


def choosing(task, backbone, by):
    """The inputs of a selector: a profile of recency ratios, and scores where it needs them."""
    kind = "mixer_prices" if by == MIXER_PRICE else "head_scores"
    return {
        "profile": profile_for(task, backbone),
        "scores": (
            [f"<results>/{task}/{backbone}/{kind}.parquet"] if by in MEASURED else []
        ),
    }


def choice_of_heads(wildcards):
    """The choice of heads other than the study's own."""
    choice = {"by": wildcards.by, "unit": wildcards.unit}
    return choice | {"scope": config["selection"]["scope"]}


def recipe_of(wildcards):
    """A recipe of recovery, without the runs that there are of it."""
    arm = arms_of(wildcards.backbone)[wildcards.arm]
    return {key: value for key, value in arm.items() if key not in {"betas", "seeds"}}


def lm_eval_task(wildcards):
    """The settings of one task of lm-eval alone."""
    tasks = Tasks(**LANGUAGE[wildcards.backbone]["tasks"])
    return tasks.alone(wildcards.evaluated).model_dump(mode="json")
