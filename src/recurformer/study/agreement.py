"""Rules between the blocks of a study. A study that breaks one would fail later, in a job."""

from math import ceil
from typing import TYPE_CHECKING, get_args

from recurformer.study.method import MeasuredScore
from recurformer.tasks.sizes import HASH_VOCABULARY, HashHopTokenSizes

if TYPE_CHECKING:
    from recurformer.study import Study


def _choice_of_heads(study: "Study") -> None:
    """What ranks heads is measured where the choice needs it, and something is replaced."""
    for key, selection in (("selection", study.selection), ("mqar.task.selection", study.mqar.task.selection)):
        if selection.by in get_args(MeasuredScore):
            raise ValueError(
                f"{key}.by: {selection.by!r} is measured for ablations only; choose ra_i, mean_rr or a control here"
            )
    if study.selection.scope == "layer" and (study.ablations.language.layers or study.ablations.hashhop.layers):
        raise ValueError("selection.scope: ablations of whole layers rank all of them; choose 'global'")
    if not max(study.language.betas):
        raise ValueError("language.betas: Figure 1 needs a model with replaced heads; add a share above 0")


def _tokenizers(study: "Study") -> None:
    """A random backbone reads what it is shown."""
    for name in study.language.backbones:
        if study.backbones[name].tokenizer == "hash":
            raise ValueError(f"language.backbones: {name!r} reads hashes and no text; give it tokenizer byte")
    task = study.hashhop.task
    for name in study.hashhop.backbones:
        if study.backbones[name].tokenizer != "hash":
            continue
        if task.form == "text":
            raise ValueError(f"hashhop.task.form: {name!r} reads hashes and no text; choose form tokens")
        known = study.backbones[name].vocabulary or HASH_VOCABULARY
        if known != task.vocabulary:
            raise ValueError(
                f"backbones.{name}.vocabulary: {known} is not the {task.vocabulary} of hashhop.task; make them the same"
            )


def _sizes_of_hashhop(study: "Study") -> None:
    """Every layout that is tested has room for its chains."""
    task, variants = study.hashhop.task, study.hashhop.evaluation.variants
    sizes = {f"ablations.sizes.sizes: [{hops}, {size}]": (hops, size) for hops, size in study.ablations.sizes.sizes}
    tested = {"hashhop.task": task} | {key: task.resized(*size) for key, size in sizes.items()}
    for key, asked in tested.items():
        for variant in variants:
            try:
                asked.sizes(variant)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None


def _windows(study: "Study") -> None:
    """A window as long as its sample would make every head recency-aware."""
    longest, tokens = max(study.ablations.recency.windows), study.language.profiling.tokens
    if longest >= tokens:
        raise ValueError(
            f"ablations.recency.windows: {longest} must be below the {tokens} tokens of language.profiling"
        )
    sizes = study.hashhop.task.sizes(study.hashhop.evaluation.variants[0])
    if study.hashhop.profiling and isinstance(sizes, HashHopTokenSizes):
        window = study.hashhop.profiling.window
        if window >= sizes.length:
            raise ValueError(f"hashhop.profiling.window: {window} must be below the {sizes.length} tokens of a sample")


def _pooled_heads(study: "Study") -> None:
    """Pooled key-value heads divide the query heads, and are no more than there are."""
    for task in ("language", "hashhop"):
        changed = getattr(study.ablations, task)
        for name in changed.backbones:
            heads, kv_heads = study.backbones[name].head_counts
            for count in changed.kv_heads:
                if count > kv_heads or heads % count:
                    raise ValueError(
                        f"ablations.{task}.kv_heads: {count} must divide the {heads} heads of {name!r} and be at most"
                        f" its {kv_heads} key-value heads"
                    )


def _recoveries(study: "Study") -> None:
    """Recipes have names of their own, and what is measured while it learns learns in one process."""
    language = study.language
    if language.recovery is None:
        return
    for name, arm in language.recovery.arms.items():
        key, batch = f"language.recovery.arms.{name}", language.training.batch_size
        if name in {"original", "paper"}:
            raise ValueError(f"{key}: this is the name of a training of its own; choose another")
        steps = arm.steps or language.training.steps
        if arm.transfer_steps + ceil(arm.calibrate_windows / batch) > steps:
            raise ValueError(f"{key}: the closed form and transfer take more than its {steps} steps of {batch} windows")
    for name in language.backbones:
        if name in study.distributed:
            raise ValueError(f"language.recovery: {name!r} is trained by several processes, which measure no curve")


def check_agreement(study: "Study") -> None:
    """Raise a ValueError that names the key which the others do not allow."""
    for check in (_choice_of_heads, _tokenizers, _sizes_of_hashhop, _windows, _pooled_heads, _recoveries):
        check(study)
