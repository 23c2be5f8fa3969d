# Settings, inputs and wildcards of a job as words of its command line.
def flags(*keys, prefix=""):
    """The settings at `keys` as the words of a command line, for a parameter that is quoted by `:q`. A function, for
    Snakemake would look for wildcards in a list.
    """
    return partial(settings_at, keys, prefix)


def settings_at(keys, prefix, wildcards):
    """The settings at `keys` of the configuration as flags, none for a block that is absent."""
    block = config
    for key in keys:
        block = block[key]
    return as_flags(block or {}, prefix)


def files(*names):
    """Present inputs of a rule as flags of the same names."""
    return partial(file_flags, names)


def file_flags(names, wildcards, input):
    return as_flags({name: str(input[name]) for name in names if input[name]})


def seed_of_job(wildcards):
    return wildcards.get("seed", config["seed"])


def run_flags(wildcards):
    """The share of replaced heads, where it is one of the study's own, and the seed."""
    return as_flags({"beta": wildcards.get("beta"), "seed": seed_of_job(wildcards)})


def ranked_shares(wildcards, input):
    """All shares of replaced heads, and the profile that ranks the heads; no profile: at random."""
    profile = [str(input.profile)] if input.profile else []
    return as_flags(
        {"profile": profile, "betas": config["betas"], "seed": config["seed"]}
    )


def one_search(wildcards):
    """One share of replaced heads and the protocol of reading."""
    search = {name: wildcards[name] for name in ("beta", "protocol")}
    return as_flags({**search, "seed": config["seed"]})


def doubled_steps(wildcards):
    """Twice the steps of MQAR where the study asks for it: of two flags the last one counts."""
    again = float(wildcards.beta) in config["mqar"]["doubled"]
    steps = config["mqar"]["task"]["training"]["steps"]
    return as_flags({"training_steps": 2 * steps} if again else {})


def as_measured():
    """The type in which trained models, and the models beside them, are measured."""
    return as_flags({"dtype": config["evaluation_dtype"]})


def backbone_flags(wildcards):
    return as_flags(config["backbones"][wildcards.backbone])


def sink_head_flags(wildcards):
    return as_flags(config["language"]["sink_heads"].get(wildcards.backbone, {}))


def shape_flags(wildcards):
    return as_flags(config["backbones"][wildcards.backbone], "backbone-")


def training_flags(task, recipe="training"):
    """The recipe of a task, and the processes of the training, where the study names some for the backbone."""

    def of_backbone(wildcards):
        spread = config["distributed"].get(wildcards.backbone, {})
        return settings_at([task, recipe], "", wildcards) + as_flags(
            spread, "distributed-"
        )

    return of_backbone


def curve_flags(wildcards, output):
    """The flags by which a training on text measures its model meanwhile, in a study with a recovery block."""
    if not RECOVERY:
        return []
    points = {key: RECOVERY[key] for key in ("held_out", "halvings")}
    return as_flags({"recovery": str(output.recovery)} | points)


def arm_flags(wildcards):
    """A recipe of recovery."""
    arm = RECOVERY["arms"][wildcards.arm]
    return as_flags(
        {name: value for name, value in arm.items() if name not in {"betas", "seeds"}},
        "arm-",
    )


def lm_eval_flags(wildcards):
    """The settings of one task of lm-eval alone, with HashHop's sizes where it is that."""
    task = Tasks(**config["language"]["tasks"]).alone(wildcards.evaluated)
    sizes = config["hashhop"]["task"] if wildcards.evaluated == "hashhop" else {}
    return as_flags(task.model_dump(mode="json")) + as_flags(sizes, "hashhop-")


def mixer_flag(wildcards):
    return as_flags({"mixer": wildcards.mixer})


def window_flags(wildcards):
    return as_flags(ABLATIONS[wildcards.task]["window"])
