"""lm-eval tasks on a model object, by lm-eval's own HFLM: three with local data, and by name lm-eval's own.

The tasks are `tasks/*.yaml`. Each run writes, into a folder of its own, their samples as JSON lines and a YAML file
that includes the task's own and names the file of the samples; so nothing is downloaded, and `lm-eval run --tasks
<folder>/passkey.yaml` repeats the run.
"""

import contextlib
import functools
import io
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.data.datasets import item_generator
from recurformer.data.hashhop import HashHopSample, score_hashes, text_sample
from recurformer.data.passkey import PasskeySample, PasskeyTask, starts_with_key
from recurformer.data.sizes import HashHopTextSizes
from recurformer.measure.generate import MORE_TOKENS
from recurformer.study import Tasks

TASK_FILES = Path(__file__).with_name("tasks")
GENERATED_SAMPLES = 100
BOOTSTRAP_ITERATIONS = 100
NOT_ASKED = -1
"""RULER's score at a length, which is then the metric's name, that was not asked."""


@dataclass(frozen=True)
class LocalTask:
    """A task with local data: its samples, and its differences from lm-eval's defaults.

    Attributes:
        records: the samples, as JSON objects.
        overrides: keys of the task's YAML file that depend on the run.
        harness: arguments of HFLM.
    """

    records: list[dict[str, Any]]
    overrides: dict[str, Any] = field(default_factory=dict)
    harness: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LocalSettings:
    """What the tasks are asked with.

    Attributes:
        tokenizer: of the model.
        tasks: which, and their numbers and lengths; without a number 100 generated samples, all articles.
        seed: of the generated samples.
        hashhop: sizes and layout of HashHop.
        articles: column text, for `wikipedia`.
    """

    tokenizer: PreTrainedTokenizerBase
    tasks: Tasks
    seed: int = 0
    hashhop: HashHopTextSizes = field(default_factory=HashHopTextSizes)
    articles: pd.DataFrame | None = None


def _generated(
    settings: LocalSettings, draw: Callable[[np.random.Generator], HashHopSample | PasskeySample]
) -> LocalTask:
    """Samples with generated answers. An answer has `MORE_TOKENS` tokens more than the longest right answer."""
    count = GENERATED_SAMPLES if settings.tasks.samples is None else settings.tasks.samples
    samples = [draw(item_generator(settings.seed, index, "test")) for index in range(count)]
    lengths = [len(settings.tokenizer(sample.answer, add_special_tokens=False).input_ids) for sample in samples]
    limits = {"until": ["\n"], "do_sample": False, "max_gen_toks": max(lengths) + MORE_TOKENS}
    # lm-eval asks no questions in turns
    fields = [{name: value for name, value in vars(sample).items() if name != "turns"} for sample in samples]
    return LocalTask(fields, {"generation_kwargs": limits})


def _wikipedia(settings: LocalSettings) -> LocalTask:
    if settings.articles is None or settings.articles.empty:
        raise ValueError("wikipedia: the task needs articles, and there are none")
    texts = settings.articles.text.iloc[: settings.tasks.samples]
    return LocalTask([{"text": text} for text in texts], harness={"max_length": settings.tasks.tokens})


LOCAL_TASKS: dict[str, Callable[[LocalSettings], LocalTask]] = {
    "hashhop": lambda settings: _generated(settings, functools.partial(text_sample, settings.hashhop)),
    "passkey": lambda settings: _generated(settings, PasskeyTask(settings.tokenizer, settings.tasks.tokens).sample),
    "wikipedia": _wikipedia,
}


def score_hashhop(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """h_gq of one answer, and whether it is right to the end (called by lm-eval)."""
    hops = len(doc["target"])
    correct = score_hashes(results[0], doc["target"])
    return {"h_gq": correct / hops, "exact": float(correct == hops)}


def score_passkey_answer(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Whether one answer starts with the key (called by lm-eval)."""
    return {"accuracy": float(starts_with_key(results[0], *doc["keys"]))}


def lm_eval_rows(model: PreTrainedModel, settings: LocalSettings, folder: str | Path) -> pd.DataFrame:
    """Run tasks one after another, saying so on stderr.

    Args:
        model: a causal language model, converted or not, where it is.
        settings: names of `LOCAL_TASKS`, or of any task or group of lm-eval itself (most have data on the hub), and
            what they are asked with.
        folder: for the local data.

    Returns:
        One row a metric: task, metric, value, stderr (NaN where lm-eval gives none), samples.

    Raises:
        ValueError: an unknown task, one whose data or packages are not there, one that fixes its number of examples, or
            no articles for `wikipedia`.
    """
    rows: list[tuple[str, str, float, float, int]] = []
    tasks = settings.tasks
    for number, name in enumerate(tasks.names):
        started = time.perf_counter()
        samples = dict(tasks.limits).get(name, tasks.samples)
        limited = replace(settings, tasks=tasks.model_copy(update={"samples": samples}))
        if name in LOCAL_TASKS:
            rows += _run_local(model, name, limited, Path(folder))
        else:
            rows += _run_hub(model, name, limited)
        seconds = time.perf_counter() - started
        print(f"task {number + 1}/{len(tasks.names)} {name}: {seconds:.0f} s", file=sys.stderr, flush=True)
    return pd.DataFrame(rows, columns=["task", "metric", "value", "stderr", "samples"])


def _run_local(
    model: PreTrainedModel, name: str, settings: LocalSettings, folder: Path
) -> list[tuple[str, str, float, float, int]]:
    task = LOCAL_TASKS[name](settings)
    folder.mkdir(parents=True, exist_ok=True)
    samples, config = folder / f"{name}.jsonl", folder / f"{name}.yaml"
    samples.write_text("".join(json.dumps(record) + "\n" for record in task.records))
    data = {"data_files": {"test": str(samples.resolve())}, "cache_dir": str((folder / "cache").resolve())}
    config.write_text(
        yaml.safe_dump({"include": str(TASK_FILES / f"{name}.yaml"), "dataset_kwargs": data, **task.overrides})
    )
    return _run(model, settings, str(config), _local_manager(), **task.harness)


def _run_hub(model: PreTrainedModel, name: str, settings: LocalSettings) -> list[tuple[str, str, float, float, int]]:
    with _quiet():
        manager = _hub_manager(name, settings.tokenizer.name_or_path, settings.tasks.ruler_length)
    if name not in manager.all_tasks:
        raise ValueError(f"task {name!r} is unknown; there are {', '.join(LOCAL_TASKS)} and lm-eval's own")
    shots = dict(settings.tasks.num_fewshot).get(name)
    try:
        if shots is not None:
            _check_examples(name, shots, manager)
        return _run(model, settings, name, manager, limit=settings.tasks.samples, num_fewshot=shots)
    except ImportError as error:
        raise ValueError(f"task {name!r}: it needs a package ({error}); install recurformer[longbench]") from None
    except OSError as error:  # requests and the hub's client raise its subclasses when they reach nothing
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"task {name!r}: its data cannot be loaded from the hub ({reason})") from None


@functools.cache
def _local_manager() -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=False)


def _hub_manager(name: str, tokenizer: str, ruler_length: int) -> Any:
    """lm-eval's index of the folder that the first word of a task's name names; of all tasks where it is not in there:
    that takes half a minute, for it reads some ten thousand YAML files.

    RULER's tasks make their prompts themselves, with the tokenizer in this folder, at this length.
    """
    import lm_eval.tasks

    metadata = {"tokenizer": tokenizer, "max_seq_lengths": [ruler_length]}
    folder = Path(lm_eval.tasks.__file__).parent / name.partition("_")[0].replace("niah", "ruler")
    if folder.is_dir():
        near = lm_eval.tasks.TaskManager(include_path=folder, include_defaults=False, metadata=metadata)
        if name in near.all_tasks:
            return near
    return lm_eval.tasks.TaskManager(metadata=metadata)


def _check_examples(name: str, shots: int, manager: Any) -> None:
    """Raise a ValueError where lm-eval would go on with a number of examples that the task fixes."""
    with _quiet():
        tasks = manager.load([name])["tasks"].values()
    if shots and any(task.get_config("num_fewshot") == 0 for task in tasks):
        raise ValueError(f"task {name!r}: it is asked without solved examples; leave it out of num_fewshot")


def _run(
    model: PreTrainedModel,
    settings: LocalSettings,
    task: str,
    manager: Any,
    *,
    limit: int | None = None,
    num_fewshot: int | None = None,
    **harness: Any,
) -> list[tuple[str, str, float, float, int]]:
    """The rows of one task, named or in a YAML file."""
    with _quiet(), _tasks_own_limits(model):
        from lm_eval import simple_evaluate

        size = settings.tasks.batch_size
        evaluation = simple_evaluate(
            _one_beginning()(pretrained=model, tokenizer=settings.tokenizer, batch_size=size, **harness),
            tasks=[task],
            limit=limit,
            num_fewshot=num_fewshot,
            task_manager=manager,
            bootstrap_iters=BOOTSTRAP_ITERATIONS,
            log_samples=False,
        )
    counts = evaluation["n-samples"]
    rows = []
    for full_name, measured in evaluation["results"].items():
        name = full_name.removeprefix("recurformer_")
        for key, value in measured.items():
            metric, _, kind = key.partition(",")
            not_asked = metric.isdigit() and value == NOT_ASKED
            if kind and not metric.endswith("_stderr") and not not_asked:
                error = measured.get(f"{metric}_stderr,{kind}")
                label = metric if kind == "none" else f"{metric},{kind}"
                has_error = isinstance(error, int | float)
                samples = counts.get(full_name, {}).get("effective", measured.get("sample_len", 0))
                rows.append((name, label, float(value), float(error) if has_error else float("nan"), int(samples)))
    return rows


@contextlib.contextmanager
def _tasks_own_limits(model: PreTrainedModel) -> Iterator[None]:
    """Without the length and sampling that a model is published with: its `max_new_tokens` would win over a task."""
    own = model.generation_config
    ends = {name: getattr(own, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**ends)
    try:
        yield
    finally:
        model.generation_config = own


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without lm-eval's bars and remarks, which fill a log, and without the worker processes of its bootstrap."""
    logger = logging.getLogger("lm_eval")
    level, workers = logger.level, os.environ.get("DISABLE_MULTIPROC")
    logger.setLevel(logging.ERROR)
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
        if workers is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = workers


def _one_beginning() -> Any:
    """lm-eval's HFLM, with texts that begin once; a class, made here because lm-eval takes seconds to import."""
    from lm_eval.models.huggingface import HFLM

    class OneBeginning(HFLM):
        """HFLM itself puts a beginning token before a text that is scored whole, besides the one of the tokenizer."""

        add_bos_token: bool | None

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
            """The log-likelihood of each whole text after one beginning token, nats."""
            usual, self.add_bos_token = self.add_bos_token, False
            try:
                return super().loglikelihood_rolling(requests, disable_tqdm)
            finally:
                self.add_bos_token = usual

    return OneBeginning
