# Settings, inputs and wildcards of a job as words of its command line.
import json


def words(options):
    """Options as the words of a command line, none for one that is None."""
    given = {name: value for name, value in options.items() if value is not None}
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def settings(own="", **blocks):
    """The settings of a stage as the JSON of `--settings`, for a parameter that is quoted by `:q`.

    Args:
        own: where its own keys stand in the configuration, as in `language.profiling`; or a function of the wildcards
            that returns them.
        blocks: the same for each other block of the stage.
    """

    def of_job(wildcards):
        inner = {name: block_at(place, wildcards) for name, place in blocks.items()}
        return json.dumps(
            {**block_at(own, wildcards), **{k: v for k, v in inner.items() if v}}
        )

    return of_job


def block_at(place, wildcards):
    if callable(place):
        return place(wildcards)
    block = config
    for key in filter(None, place.split(".")):
        block = block[key]
    return block if place else {}


def files(*names):
    """Present inputs of a rule as options of the same names."""
    return partial(file_words, names)


def file_words(names, wildcards, input):
    return words({name: input[name] or None for name in names})


def run_words(wildcards):
    """The fraction of replaced heads of a trained subject, and its seed."""
    beta = Subject.parse(wildcards.change).beta
    return words({"beta": beta, "seed": wildcards.seed})


def text_words(wildcards):
    """The names of a training on text in its measurements."""
    arm = arm_of(Subject.parse(wildcards.change), int(wildcards.seed))
    return run_words(wildcards) + words({"arm": arm})


def hashhop_words(wildcards):
    """The same on HashHop."""
    return run_words(wildcards) + words({"arm": wildcards.change})


def ranked_betas(wildcards, input):
    """All fractions of replaced heads, and the profile that ranks the heads; no profile: at random."""
    betas = ["--betas", *map(str, config["betas"])]
    return (
        file_words(["profile"], wildcards, input)
        + betas
        + ["--seed", str(config["seed"])]
    )


def one_search(wildcards):
    """One fraction of replaced heads and the protocol of reading."""
    search = {name: wildcards[name] for name in ("beta", "protocol")}
    return words({**search, "seed": config["seed"]})


def recall_task(wildcards):
    """MQAR, with twice the steps where the study asks for them."""
    task = config["mqar"]["task"]
    if float(wildcards.beta) not in config["mqar"]["doubled"]:
        return task
    return task | {
        "training": task["training"] | {"steps": 2 * task["training"]["steps"]}
    }


def backbone_block(wildcards):
    return config["backbones"][wildcards.backbone]


def sink_head(wildcards):
    return config["language"]["sink_heads"].get(wildcards.backbone, {})


def processes(wildcards):
    """The processes of a training, where the study names some for the backbone."""
    return config["distributed"].get(wildcards.backbone, {})


def curve_words(wildcards, output):
    """The options by which a training on text measures its model meanwhile, in a study with a recovery block."""
    if not RECOVERY:
        return []
    points = {"held-out": RECOVERY["held_out"], "halvings": RECOVERY["halvings"]}
    return words({"recovery": output.recovery} | points)


def arm_block(wildcards):
    """A recipe of recovery, without the runs that there are of it."""
    arm = RECOVERY["arms"][wildcards.arm]
    return {key: value for key, value in arm.items() if key not in {"betas", "seeds"}}


def lm_eval_task(wildcards):
    """The settings of one task of lm-eval alone."""
    tasks = Tasks(**config["language"]["tasks"])
    return tasks.alone(wildcards.evaluated).model_dump(mode="json")


def hashhop_if_asked(wildcards):
    """HashHop's sizes, for lm-eval's task of that name alone."""
    return config["hashhop"]["task"] if wildcards.evaluated == "hashhop" else {}
