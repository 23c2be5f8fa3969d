import os
import re
import sys
from functools import partial
from pathlib import Path

from recurformer.cli.arguments import flags as as_flags
from recurformer.cli.main import code_of
from recurformer.digest import code_digest, folder_digest
from recurformer.plan.rules import request
from recurformer.render.registry import REGISTRY
from recurformer.study import load_study
from recurformer.study.recovery import EQUAL_BYTES

try:
    config = load_study(config).model_dump(mode="json")
except ValueError as error:
    sys.exit(f"study: {error}")

if config["device"] == "cpu":
    os.environ.update(CUDA_VISIBLE_DEVICES="")
if config["job_minutes"]:
    # not a parameter of any rule: when a training or a search stops and goes on changes nothing about its result
    os.environ.update(RECURFORMER_MINUTES=str(config["job_minutes"]))

# A workflow that imports this one runs elsewhere: what lies beside the rules is found from their own place.
ROOT = Path(str(workflow.current_basedir)).parents[1]
RECORDED_FOLDER = os.path.relpath(ROOT / "recorded")
DOWNLOADS = "resources/downloads"
DEVICE = config["device_measurements"]
LEARNS_HASHHOP = {
    name
    for name, backbone in config["backbones"].items()
    if backbone["source"] == "random"
}


RECOVERY = config["language"]["recovery"]


include: "subjects.smk"
include: "recovered.smk"
include: "measurements.smk"


RECORDED = [
    os.path.join(folder, file)
    for folder, _, files in sorted(os.walk(RECORDED_FOLDER))
    for file in sorted(files)
    if "results" in folder.split(os.sep)
    and not folder.endswith("tables")
    and file != "claims.csv"  # rendered, as the tables are: no evidence
    and file.endswith((".csv", ".jsonl", ".parquet"))
]
DESCRIBED = [
    *("LICENSE", "README.md", "pyproject.toml", "requirements.lock"),
    *(
        f"workflow/rules/{path.name}"
        for path in sorted((ROOT / "workflow/rules").glob("*.smk"))
    ),
]


def study_folder():
    """The default study has no folder of its own, any other has its name's. `--config` changes a study: what it changes
    must not overwrite the results of the unchanged one.
    """
    name = "" if config["study"] == "default" else config["study"]
    changed = set(workflow.config_settings.config) - {"job_minutes"}
    if "study" in changed or not changed:
        return name
    if changed != {"seed"}:
        given = ", ".join(sorted(changed - {"seed"}))
        sys.exit(
            f"study: --config changes {given}; give the changed study a name too: --config study=NAME"
        )
    return os.path.join(name, f"seed-{config['seed']}")


def below(folder, inner=""):
    """A folder of the study's results or figures; `inner` is a folder in there."""
    return os.path.join(folder, study_folder(), inner).rstrip(os.sep)


def recorded_folder(wildcards):
    return RECORDED_FOLDER


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
    """Inputs of a rule as flags of the same names, those that are there."""
    return partial(file_flags, names)


def file_flags(names, wildcards, input):
    return as_flags({name: str(input[name]) for name in names if input[name]})


def seed_of_job(wildcards):
    return wildcards.get("seed", config["seed"])


def run_flags(wildcards):
    """Which share of replaced heads, where it is one of the study's own, and which seed."""
    return as_flags({"beta": wildcards.get("beta"), "seed": seed_of_job(wildcards)})


def ranked_shares(wildcards, input):
    """All shares of replaced heads, and what ranks the heads; nothing behind the flag: at random."""
    profile = [str(input.profile)] if input.profile else []
    return as_flags(
        {"profile": profile, "betas": config["betas"], "seed": config["seed"]}
    )


def one_search(wildcards, output):
    """One share of replaced heads, how a prompt is read, and where the trials are kept."""
    one = {name: wildcards[name] for name in ("beta", "protocol")}
    trials = os.path.join(os.path.dirname(output.rows), "trials.jsonl")
    return as_flags({**one, "seed": config["seed"], "trials": trials})


def as_measured():
    """The type in which trained models, and what they are compared with, are measured."""
    return as_flags({"dtype": config["evaluation_dtype"]})


def backbone_flags(wildcards):
    return as_flags(config["backbones"][wildcards.backbone])


def sink_head_flags(wildcards):
    return as_flags(config["language"]["sink_heads"].get(wildcards.backbone, {}))


def shape_flags(wildcards):
    return as_flags(config["backbones"][wildcards.backbone], "backbone-")


def mem_mb(wildcards, attempt, threads, rulename):
    """Megabytes by formula, more with every attempt."""
    return attempt * request(rulename, config, wildcards, threads).memory_mb


def runtime(wildcards, attempt, threads, rulename):
    """Minutes after which a job that hangs is stopped, more with every attempt."""
    return attempt * request(rulename, config, wildcards, threads).limit_minutes


def gpu(wildcards, rulename):
    """Cards, nothing in a study without any."""
    return request(rulename, config, wildcards).gpus or None


def lsf_gpu(wildcards, rulename):
    cards = gpu(wildcards, rulename)
    return f"-gpu num={cards}" if cards else None


BESIDE_CARDS = {"mem_mb": mem_mb, "runtime": runtime}
# The plugins for LSF and HTCondor do not know `gpu`: each has a resource of its own for cards.
ON_CARD = {**BESIDE_CARDS, "gpu": gpu, "lsf_extra": lsf_gpu, "request_gpus": gpu}


def lm_eval_hashhop_flags():
    """HashHop's sizes, for the lm-eval stage of a study that has it among its tasks."""
    asked = "hashhop" in config["language"]["tasks"]["names"]
    return flags("hashhop", "task", prefix="hashhop-") if asked else []


def code(stage):
    """A digest of the code that `stage` uses: when it changes, its jobs run again. Computed for the stages of the jobs
    at hand only, as a job of a cluster starts Snakemake anew.
    """
    return partial(stage_digest, stage)


def stage_digest(stage, wildcards):
    return code_digest(code_of(stage))


def code_beside(*names):
    """As `code`, of all code in folders beside the rules, and of what it uses of the package."""
    return lambda wildcards: folder_digest(*(ROOT / name for name in names))


def training_flags(task, recipe="training"):
    """The recipe of a task, and how the training of a backbone lies on processes, where the study says so."""

    def of_backbone(wildcards):
        spread = config["distributed"].get(wildcards.backbone, {})
        return settings_at([task, recipe], "", wildcards) + as_flags(
            spread, "distributed-"
        )

    return of_backbone


def curve_flags(wildcards, output):
    """What a training on text needs to measure the model while it learns, in a study that asks for it."""
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


def training_code(stage):
    """As `code`, of what trains a backbone: in one process, or over several."""

    def of_backbone(wildcards):
        distributed = wildcards.backbone in config["distributed"]
        return code("distributed" if distributed else stage)

    return of_backbone


def base_checkpoint(wildcards):
    """What is profiled and converted: the backbone itself, or what it became by learning HashHop."""
    if (
        wildcards.get("task", "hashhop") == "hashhop"
        and wildcards.backbone in LEARNS_HASHHOP
    ):
        return f"<results>/hashhop/{wildcards.backbone}/base"
    return f"<results>/backbones/{wildcards.backbone}"


def baseline_checkpoint(wildcards):
    """What must have learned HashHop before a share of replaced heads says anything: the model before its conversion,
    or, of a backbone that meets the task only afterwards, the original trained likewise.
    """
    if wildcards.backbone in LEARNS_HASHHOP:
        return base_checkpoint(wildcards)
    return studys_own("hashhop", wildcards.backbone, 0.0)


def profile_for(task, backbone):
    """The profile that ranks the heads: on text (appendix B), or on HashHop for a model that knows nothing else."""
    source = (
        "hashhop" if task == "hashhop" and backbone in LEARNS_HASHHOP else "language"
    )
    return f"<results>/{source}/{backbone}/profile.parquet"


def ranking_profile(wildcards):
    return profile_for(wildcards.task, wildcards.backbone)


def profile_if_any(wildcards):
    """The profile that ranks the heads of a backbone, when the study makes one."""
    for task in ("language", "hashhop"):
        if wildcards.backbone in config[task]["backbones"]:
            return profile_for(task, wildcards.backbone)
    return []


def trained_at_most(wildcards):
    """The trained model with the most heads replaced."""
    return studys_own("language", wildcards.backbone, max(config["language"]["betas"]))
