import os
import re
import sys
from functools import partial
from pathlib import Path

from recurformer.cli.main import code_of
from recurformer.digest import code_digest
from recurformer.render.registry import REGISTRY, heading
from recurformer.study import Tasks, load_study
from recurformer.study.needs import request
from recurformer.study.recovery import EQUAL_BYTES
from recurformer.yaml_files import read_yaml

try:
    if workflow.is_main_process and not workflow.modifier.skip_configfile:
        for file in workflow.configfiles:
            read_yaml(file)  # refuses what Snakemake has read without a word
    config = load_study(config).model_dump(mode="json")
except ValueError as error:
    sys.exit(f"study: {error}")

# Jobs read and write UTF-8 in any locale. A notebook's backend of figures may not be installed here.
os.environ.update(PYTHONUTF8="1")
os.environ.pop("MPLBACKEND", None)
if config["device"] == "cpu":
    os.environ.update(CUDA_VISIBLE_DEVICES="")
# A job that the kernel ends can say nothing itself. Snakemake shows a prefix with any failure, so it holds no text.
os.environ.update(
    RECURFORMER_KILLED="exit 137: this job was killed, most likely because the memory was full (README.md, troubleshooting)"
)
shell.prefix(
    "set -euo pipefail; trap '[ $? != 137 ] || echo \"$RECURFORMER_KILLED\" >&2' EXIT; "
)

# A workflow that imports this one runs elsewhere: paths beside the rules begin at their own place.
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


include: "flags.smk"
include: "subjects.smk"
include: "measurements.smk"


RECORDED = [
    str(file)
    for pattern in ("*/runs.jsonl", "*/measurements/*.parquet")
    for file in sorted(Path(RECORDED_FOLDER).glob(pattern))
]


def study_folder():
    """The folder of a named study, none for the default one. The results of a study that `--config` changes must not
    overwrite those of the unchanged one.
    """
    name = "" if config["study"] == "default" else config["study"]
    changed = set(workflow.config_settings.config)
    if "study" in changed or not changed:
        return name
    if changed != {"seed"}:
        keys = ", ".join(sorted(changed - {"seed"}))
        sys.exit(
            f"study: --config changes {keys}; give the changed study a name too: --config study=NAME"
        )
    return os.path.join(name, f"seed-{config['seed']}")


def below(folder, inner=""):
    """A folder of the study's results or figures; `inner` is a folder in there."""
    return os.path.join(folder, study_folder(), inner).rstrip(os.sep)


def recorded_folder(wildcards):
    return RECORDED_FOLDER


def needs(name, grows=False):
    """What a job asks for by its rule, more with every attempt where it `grows`; nothing instead of none."""

    def of_job(wildcards, attempt, rulename):
        asked = request(rulename, config, wildcards)[name]
        return asked * (attempt if grows else 1) or None

    return of_job


NEEDS = {
    "mem_mb": needs("mem_mb", grows=True),
    "runtime": needs("runtime", grows=True),
    "gpu": needs("gpu"),
}


def code(stage):
    """A digest of the code that `stage` uses: when it changes, its jobs run again. Computed for the stages of the jobs
    at hand only, as a job of a cluster starts Snakemake anew.
    """
    return partial(stage_digest, stage)


def stage_digest(stage, wildcards):
    return code_digest(code_of(stage))


def base_of(task, backbone):
    """The model that is profiled and converted: the backbone itself, or the backbone trained on HashHop."""
    if task == "hashhop" and backbone in LEARNS_HASHHOP:
        return f"<results>/hashhop/{backbone}/base"
    return f"<results>/backbones/{backbone}"


def base_checkpoint(wildcards):
    return base_of(wildcards.get("task", "hashhop"), wildcards.backbone)


def profile_for(task, backbone):
    """The profile that ranks the heads: on text (appendix B), or on HashHop for a model that knows HashHop alone."""
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
    most = papers(max(config["language"]["betas"]), config["seed"])
    return model_of("language", wildcards.backbone, most, config["seed"])
