import json
import os
import re
import sys
from itertools import product
from pathlib import Path

from recurformer.cli.main import STAGES
from recurformer.digest import code_digest
from recurformer.files import read_yaml
from recurformer.gpus import STUDY_DEVICE
from recurformer.render.registry import REGISTRY, heading
from recurformer.study import Study, Tasks
from recurformer.study.method import EQUAL_BYTES
from recurformer.study.needs import Sizes, request

try:
    if workflow.is_main_process and not workflow.modifier.skip_configfile:
        for file in workflow.configfiles:
            read_yaml(file)  # refuses what Snakemake has read without a word
    study = Study.read(config)
    config = study.model_dump(mode="json")
    for backbone in config["backbones"].values():
        Sizes.of(backbone)  # refuses a checkpoint whose sizes cannot be read
except ValueError as error:
    sys.exit(f"study: {error}")

# Jobs read and write UTF-8 in any locale. A notebook's backend of figures may not be installed here.
os.environ.update(PYTHONUTF8="1")
os.environ.pop("MPLBACKEND", None)
os.environ[STUDY_DEVICE] = config["device"]
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
# The settings on text of each backbone.
LANGUAGE = {
    name: study.language.of(name).model_dump(mode="json")
    for name in study.language.backbones
}
LEARNS_HASHHOP = {
    name
    for name, backbone in config["backbones"].items()
    if backbone["source"] == "random"
}
LEARNS_TEXT = {
    name for name in LEARNS_HASHHOP & LANGUAGE.keys() if LANGUAGE[name]["pretraining"]
}


# Whether trainings on text measure their model meanwhile; those of backbones that learn the text from nothing.
RECOVERY = any(block["recovery"] for block in LANGUAGE.values())
COMES_BACK = {name for name in LEARNS_TEXT if LANGUAGE[name]["recovery"]}


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


def config_for(wildcards):
    """The study with the settings on text of one backbone."""
    own = LANGUAGE.get(wildcards.get("backbone"), config["language"])
    return config | {"language": own}


def needs(name, grows=False):
    """What a job asks for by its rule; nothing instead of none. Where it `grows`, the second attempt asks for twice as
    much, and all later ones for three times: a training may be stopped and resume many times.
    """

    def of_job(wildcards, attempt, rulename):
        asked = request(rulename, config_for(wildcards), wildcards)[name]
        return asked * (min(attempt, 3) if grows else 1) or None

    return of_job


NEEDS = {
    "mem_mb": needs("mem_mb", grows=True),
    "runtime": needs("runtime"),
    "gpu": needs("gpu"),
    # SLURM would spread the GPUs of a job over several nodes, and its processes are all on one
    "nodes": 1,
}


BLOCKS = {
    "backbone": "backbones.{backbone}",
    "distributed": "distributed.{backbone}",
    "mamba": "mamba",
    "others": "ablations.recency",
    "search": "caches.search",
    "selection": "selection",
    "shown": "language.sink_heads.{backbone}",
    "task": "hashhop.task",
}
"""Where the blocks of settings stand that stages take beside their own."""


def stage(name, **given):
    """The parameters of a rule that is made of rule `stage` (prepare.smk), which are its command, run there with
    `--threads` and a log, and what its jobs run again by when it changes: all values, and a digest of the code.

    The command is `recurformer NAME` with its settings as JSON. It calls the function of this name in
    `src/recurformer/cli`, which gets each block of the settings as the class that its signature names.
    The inputs and outputs of the rule are the arguments of the stage with the same names. So are its wildcards, where
    the stage has such arguments: {backbone} is its `name`. The study's seed and type of weights are given likewise.
    `given` are other arguments: values, or functions of the wildcards; and blocks of settings: their places in the
    configuration, or functions too.
    """
    made_of = STAGES[name]

    def command(wildcards, input, output):
        """Its words, without the threads, which depend on the machine."""
        words = values_of(made_of, given, wildcards)
        files = dict(input.items()) | dict(output.items())
        return made_of.command(
            words
            | {key: files[key] for key in files.keys() - (given.keys() & words.keys())}
        )

    def values(wildcards):
        """All but the files: Snakemake remembers no command, because it was made of inputs and outputs."""
        return json.dumps(
            values_of(made_of, given, wildcards), sort_keys=True, default=str
        )

    def code(wildcards):
        """Computed for the stages of the jobs at hand only, as a job of a cluster starts Snakemake anew."""
        return code_digest(made_of.place)

    return {"command": command, "values": values, "code": code}


def values_of(stage, given, wildcards):
    """The values of a stage's arguments, its settings among them, but for its files."""
    places = {name: given.get(name) or BLOCKS[name] for name in stage.blocks}
    blocks = {name: block_at(place, wildcards) for name, place in places.items()}
    settings = blocks.pop("settings", {}) | {k: v for k, v in blocks.items() if v}
    values = {"seed": config["seed"], "dtype": config["evaluation_dtype"]}
    values |= {"name": wildcards.get("backbone")} | dict(wildcards.items())
    values = {key: values[key] for key in values.keys() & stage.arguments_by_name}
    for key in given.keys() - places.keys():
        values[key] = given[key](wildcards) if callable(given[key]) else given[key]
    if stage.blocks:
        values["settings"] = json.dumps(settings)
    return values


def block_at(place, wildcards):
    """A block of settings. What a study has for some backbones only is empty for the others."""
    if callable(place):
        return place(wildcards)
    block = config_for(wildcards)
    for key in place.split("."):
        if key == "{backbone}":
            block = block.get(wildcards.backbone, {})
        else:
            block = block[key]
    return block


def base_of(task, backbone):
    """The model that is profiled and converted: the backbone itself, or the backbone after its training on the task."""
    if backbone in (LEARNS_HASHHOP if task == "hashhop" else LEARNS_TEXT):
        return f"<results>/{task}/{backbone}/base"
    return f"<results>/backbones/{backbone}"


def base_checkpoint(wildcards):
    return base_of(wildcards.get("task", "hashhop"), wildcards.backbone)


def text_checkpoint(wildcards):
    return base_of("language", wildcards.backbone)


def before_text(wildcards):
    """The model that learns the text: the random backbone, or the same after it has learned to copy lists."""
    if LANGUAGE[wildcards.backbone]["copying"]:
        return f"<results>/language/{wildcards.backbone}/copying"
    return f"<results>/backbones/{wildcards.backbone}"


def words_learned(wildcards):
    """The text whose words the tokenizer of a backbone learns, if it does."""
    learns = config["backbones"][wildcards.backbone]["tokenizer"] == "bpe"
    return "<results>/corpus/articles.parquet" if learns else []


def profile_for(task, backbone):
    """The profile that ranks the heads: on text (appendix B), or on HashHop for a model that knows HashHop alone."""
    source = (
        "hashhop" if task == "hashhop" and backbone in LEARNS_HASHHOP else "language"
    )
    return f"<results>/{source}/{backbone}/profile.parquet"


def profile_if_any(wildcards):
    """The profile that ranks the heads of a backbone, when the study makes one."""
    for task in ("language", "hashhop"):
        if wildcards.backbone in config[task]["backbones"]:
            return profile_for(task, wildcards.backbone)
    return []
