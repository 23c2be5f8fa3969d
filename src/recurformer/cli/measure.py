"""Stages that measure subjects: perplexity, likelihood, needles, lm-eval and HashHop.

Changes that need no training (eviction, untrained mixers) are made in the process that measures them, at every setting.
"""

import math
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from recurformer.cli.checkpoints import open_config, open_converted, open_model, open_tokenizer
from recurformer.cli.stage import (
    ARTICLES,
    DTYPE,
    MEASURED_BETA,
    NAME,
    InputPath,
    Metric,
    argument,
    checkpoint,
    perplexity_of,
    progress,
    seed,
    stage,
)
from recurformer.cli.texts import open_texts, text_windows
from recurformer.records import ancestors, final_metrics, record_of
from recurformer.study import (
    Change,
    Continuation,
    HashHopEvaluation,
    HashHopTask,
    HeadScores,
    Mamba,
    Needle,
    Perplexity,
    Selection,
    Tasks,
    Turns,
    Window,
)
from recurformer.study.ablations import HashHopSizes
from recurformer.study.subject import Subject

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedConfig, PreTrainedModel

    from recurformer.heads.probes import Repeated
    from recurformer.measure.generate import NewCache

    Changed = tuple[PreTrainedModel, NewCache | None, dict[str, Any]]

SUBJECT = (
    checkpoint(),
    NAME,
    argument("--subject", default="original", help="path of the subject, as in results/language/BACKBONE"),
    argument("--original", type=InputPath, required=True, help="folder of the model before any change"),
    seed("the samples, and of the training for the measurements"),
    DTYPE,
    argument(
        "--match", nargs="+", type=InputPath, help="measurements of others, as much of whose cache an eviction keeps"
    ),
    argument("--profile", type=InputPath, help="head profile, where heads are replaced in this process"),
    argument("--scores", type=InputPath, help="scores written by head-scores, for the same choice of heads"),
    argument("--prices", type=InputPath, help="written by prices, where these choose what each group keeps"),
)
"""The subject, its model, and what a change of it in this process needs."""


def measure(
    args: Namespace,
    change: Change,
    rows_of: Callable[..., "pd.DataFrame"],
    repeated: "Repeated | None" = None,
) -> "pd.DataFrame":
    """The rows of a subject, at every setting of its change, with the columns that say what they are of.

    Args:
        args: those of `SUBJECT`.
        change: its settings.
        rows_of: measures `model`, given the configuration of the `original` and as `new_cache` the maker of a cache, or
            None for the model's own.
        repeated: random tokens on which an eviction method may judge the heads; see `make_eviction`.

    Raises:
        ValueError: an unknown subject, or a change without the settings that it needs.
    """
    import pandas as pd

    subject = Subject.parse(args.subject)
    model, original = open_model(args.checkpoint, args.dtype), open_config(args.original)
    variants: Iterator[Changed] = iter([(model, None, {})])
    if subject.kind in {"evicted", "combined"}:
        variants = _evicted(args, model, subject, change, repeated)
    elif subject.kind == "replaced":
        variants = _replaced(args, model, subject, change)
    elif subject.kind == "priced":
        variants = _priced(args, model, subject, change)
    elif subject.kind == "pooled":
        variants = iter([(model, None, {"setting": model.config.num_key_value_heads / original.num_key_value_heads})])
    columns = {"model": args.name, **subject.columns(change.recovered_by)}
    columns["seed"] = subject.choice if subject.by == "random" else args.seed
    columns["fall"] = fall_behind(args.checkpoint) if columns["trained"] else 0.0
    frames = [
        rows_of(model=changed, original=original, new_cache=new_cache).assign(**{**columns, **setting})
        for changed, new_cache, setting in variants
    ]
    return pd.concat(frames, ignore_index=True)


def _evicted(
    args: Namespace, model: "PreTrainedModel", subject: Subject, change: Change, repeated: "Repeated | None"
) -> "Iterator[Changed]":
    from recurformer.evict import empty_cache, evicting, make_eviction
    from recurformer.evict.pyramidinfer import AS_PRINTED

    if change.as_printed:
        if subject != Subject("evicted", "pyramidinfer_paper"):
            raise ValueError(f"--settings change.as_printed: Table 2 has no setting of {subject}; name change.budgets")
        make_eviction(model, subject.name, AS_PRINTED.budget)  # refuses a model that cannot evict
        yield evicting(model), partial(empty_cache, model, AS_PRINTED), {"setting": AS_PRINTED.keep}
        return
    budgets = [*change.budgets, *map(_held_share, args.match or [])]
    if not budgets:
        raise ValueError(f"--settings change.budgets: {subject} keeps fractions of the cache; name them")
    for budget in budgets:
        eviction = make_eviction(model, subject.name, budget, repeated)
        yield evicting(model), partial(empty_cache, model, eviction), {"setting": budget}


def _held_share(measurements: str) -> float:
    """The mean share of the cache that was held in some measurements.

    Raises:
        ValueError: the file has no such column.
    """
    import pandas as pd

    read = pd.read_parquet if measurements.endswith(".parquet") else pd.read_csv
    try:
        return min(float(read(measurements)["ratio"].mean()), 1.0)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"--match {measurements}: has no column ratio, of the cache that was held") from error


def _replaced(args: Namespace, model: "PreTrainedModel", subject: Subject, change: Change) -> "Iterator[Changed]":
    from recurformer.cli.texts import text_windows
    from recurformer.heads.select import chosen_heads
    from recurformer.model.convert import convert
    from recurformer.recover.states import solved

    if not (change.betas and args.profile):
        raise ValueError(f"--profile and --settings change.betas: {subject} replaces heads here; give both")
    selection = Selection.model_validate({"by": subject.by, "unit": subject.unit})
    sizes, asked = change.mamba.model_dump() | change.window.model_dump(), change.solved
    text = text_windows(args, asked.tokens, asked.samples, seed=args.seed) if asked else None
    for beta in change.betas:
        heads = chosen_heads(args.profile, args.scores, selection, beta, subject.choice)
        if text is None or not any(heads):
            converted = convert(model, heads, subject.name, **sizes)
        else:
            converted, _ = solved(model, heads, subject.name, text, args.seed, **sizes)
        yield converted, None, {"setting": beta}


BOUGHT: dict[str, Callable[["pd.DataFrame"], "pd.DataFrame"]] = {
    "windows": lambda prices: prices[prices.bits == prices.bits.max()],
    "bits": lambda prices: prices[prices.window.isna()],
    "windows_bits": lambda prices: prices,
}
"""Name of a priced subject -> the choices among which a budget is spent."""


def _priced(args: Namespace, model: "PreTrainedModel", subject: Subject, change: Change) -> "Iterator[Changed]":
    import pandas as pd

    from recurformer.recover.budget import convert_within, least_of
    from recurformer.results.frames import require

    if not (change.budgets and args.prices):
        raise ValueError(f"--prices and --settings change.budgets: {subject} spends these here; give both")
    if subject.name not in BOUGHT:
        raise ValueError(f"--subject {subject}: what may be bought is {', '.join(BOUGHT)}")
    try:
        prices = require(pd.read_parquet(args.prices), "prices")
    except (OSError, ValueError) as error:
        raise ValueError(f"--prices {args.prices}: {str(error).splitlines()[0]}") from None
    choices_made = BOUGHT[subject.name](prices)
    least = least_of(choices_made, model)
    for budget in sorted({max(budget, least) for budget in change.budgets}):
        yield convert_within(model, prices, choices_made, budget), None, {"setting": budget}


def fall_behind(checkpoint: str) -> float:
    """By how much the loss of the last training of a model may still have fallen, in nats: see `train.trainer`.

    NaN where no run record tells: an earlier training of the same model says nothing about the last one.
    """
    record = record_of(checkpoint)
    runs = map(final_metrics, (run for _, run in ancestors(record)) if record else ())
    return next((run.get("fall", math.nan) for run in runs if "tokens_seen" in run), math.nan)


@stage(
    "perplexity on held-out articles",
    argument("--before", type=InputPath, required=True, help="folder of the original"),
    argument("--heads", type=InputPath, help="JSON file of `recurformer select`: replaced heads (default: none)"),
    argument("--mixer", default="mamba", help="what replaced them (default: mamba)"),
    argument("--trained", type=InputPath, required=True, help="folder of the trained model"),
    *(ARTICLES, NAME, MEASURED_BETA, seed("the mixers' weights and of the training"), DTYPE),
    rows="one row an article",
    metrics=[Metric("perplexity", "negative_log_likelihood", over="tokens", by=["stage"], of=perplexity_of)],
    device="computes",
)
def perplexity(args: Namespace, settings: Perplexity, mamba: Mamba, window: Window) -> "pd.DataFrame":
    """Perplexity on held-out articles: before conversion, converted, and trained (Table 3)."""
    import pandas as pd

    from recurformer.measure.language import perplexity_rows

    def opened(name: str) -> "PreTrainedModel":
        if name == "converted" and args.heads:
            sizes = mamba.model_dump() | window.model_dump()
            return open_converted(args.before, args.heads, args.mixer, args.seed, args.dtype, **sizes)
        return open_model(args.trained if name == "trained" else args.before, args.dtype)

    articles = open_texts(args.articles, "validation", ("title", "text"))
    tokenizer = open_tokenizer(args.before)
    frames = []
    for name in ("before", "converted", "trained"):
        rows = perplexity_rows(
            opened(name), tokenizer, articles, **settings.model_dump(), progress=progress(f"{name}: window")
        )
        frames.append(rows.assign(model=args.name, beta=args.beta, seed=args.seed, stage=name))
    return pd.concat(frames).assign(fall=fall_behind(args.trained))


@stage(
    "find keys in a long text, by depth and length, with a full or a smaller cache",
    *(*SUBJECT, ARTICLES),
    rows="one row a prompt",
    metrics=[Metric("accuracy", "correct", over="queries", by=["method", "setting", "task"])],
    device="computes",
)
def needle(args: Namespace, settings: Needle, change: Change) -> "pd.DataFrame":
    """Find keys in a long text, by depth and length, with a full or a smaller cache."""
    from recurformer.measure.needle import needle_rows

    asked = {"grid": settings.grid(), "depths": settings.depths, "progress": progress("prompt")}
    return _in_articles(args, change, needle_rows, asked)


def _in_articles(
    args: Namespace, change: Change, rows_of: Callable[..., "pd.DataFrame"], asked: dict[str, Any]
) -> "pd.DataFrame":
    """The rows of needles hidden in the held-out articles."""
    tokenizer = open_tokenizer(args.checkpoint)
    texts = tuple(open_texts(args.articles, split="validation").text)
    return measure(args, change, partial(rows_of, tokenizer=tokenizer, texts=texts, seed=args.seed, **asked))


@stage(
    "answer questions about documents that were read before, with a full or a smaller cache",
    *(*SUBJECT, ARTICLES),
    rows="one row a question",
    metrics=[Metric("accuracy", "correct", over="queries", by=["method", "setting", "length", "known"])],
    device="computes",
)
def turns(args: Namespace, settings: Turns, change: Change) -> "pd.DataFrame":
    """Answer questions about documents that were read once before, with a full or a smaller cache (section 1)."""
    from recurformer.measure.needle import turns_rows

    return _in_articles(args, change, turns_rows, {**settings.model_dump(), "progress": progress("document")})


@stage(
    "likelihood of the text after a prompt, with a full or a smaller cache",
    *(*SUBJECT, ARTICLES),
    rows="one row a window and 32 positions",
    metrics=[
        Metric("perplexity", "negative_log_likelihood", over="tokens", by=["method", "setting"], of=perplexity_of),
        Metric("divergence", "divergence", over="tokens", by=["method", "setting"]),
    ],
    device="computes",
)
def continuation(args: Namespace, settings: Continuation, change: Change) -> "pd.DataFrame":
    """Likelihood of the text after a prompt and divergence from the original, with a full or a smaller cache."""
    from recurformer.data.windows import encode_text
    from recurformer.measure.language import continuation_rows, expected_by, recalled

    # the same text for every model and seed
    input_ids = text_windows(args, settings.prompt + settings.tokens, settings.windows, split="validation")
    tokenizer = open_tokenizer(args.checkpoint)
    marks = recalled(input_ids, (encode_text(tokenizer, text) for text in open_texts(args.articles, "train").text))
    expected = expected_by(open_model(args.original, args.dtype), input_ids, settings.prompt)
    return measure(
        args,
        change,
        lambda **changed: continuation_rows(
            **changed,
            input_ids=input_ids,
            expected=expected,
            prompt=settings.prompt,
            recalled=marks,
            batch_size=settings.batch_size,
            progress=progress("window"),
        ),
    )


@stage(
    "greedy continuations of a prompt beside the original's, with a full or a smaller cache",
    *(*SUBJECT, ARTICLES),
    rows="one row a window",
    metrics=[
        Metric("agreed", "agreed", over="tokens", by=["method", "setting"]),
        Metric("perplexity", "negative_log_likelihood", over="tokens", by=["method", "setting"], of=perplexity_of),
    ],
    device="computes",
)
def written(args: Namespace, settings: Continuation, change: Change) -> "pd.DataFrame":
    """Greedy continuations of a prompt: how far they agree with the original's, and how likely it finds them."""
    import torch

    from recurformer.measure.language import write_on, written_rows

    prompts = text_windows(args, settings.prompt + settings.tokens, settings.windows, split="validation")
    prompts, judge = prompts[:, : settings.prompt], open_model(args.original, args.dtype)
    batches = prompts.split(settings.batch_size)
    expected = torch.cat([write_on(judge, batch, settings.tokens)[0] for batch in batches])
    asked: dict[str, Any] = {"prompts": prompts, "judge": judge, "expected": expected, "progress": progress("window")}
    return measure(args, change, partial(written_rows, **asked, batch_size=settings.batch_size))


@stage(
    "lm-eval tasks of a trained model, converted or not",
    *(*SUBJECT, ARTICLES),
    rows="one row a metric",
    metrics=[Metric("lm_eval", "value", by=["task", "metric"])],
    device="computes",
)
def ablation_lm_eval(args: Namespace, settings: Tasks, hashhop: HashHopTask, change: Change) -> "pd.DataFrame":
    """Evaluate a model by lm-eval tasks, through lm-eval's own HFLM."""
    from recurformer.data.sizes import HashHopTextSizes
    from recurformer.measure.lm_eval import LocalSettings, lm_eval_rows

    asked = LocalSettings(
        open_tokenizer(args.checkpoint),
        settings,
        seed=args.seed,
        hashhop=HashHopTextSizes("official", hashhop.hash_length, hashhop.hops, hashhop.characters),
        articles=open_texts(args.articles, split="validation"),
    )

    def rows_of(model: "PreTrainedModel", original: "PreTrainedConfig", new_cache: "NewCache | None") -> "pd.DataFrame":
        if new_cache is not None:
            raise ValueError(
                f"--subject {args.subject}: lm-eval makes the cache itself; measure it by needle or continuation"
            )
        with tempfile.TemporaryDirectory() as folder:
            return lm_eval_rows(model, asked, folder)

    rows = measure(args, change, rows_of)
    print(rows[["method", "setting", "task", "metric", "value", "stderr"]].to_string(index=False))
    return rows


@stage(
    "generation quality h_gq on HashHop, with a full or a smaller cache",
    *SUBJECT,
    rows="one row a sample",
    metrics=[Metric("h_gq", "correct", over="hops", by=by) for by in (["variant"], ["method", "setting", "variant"])],
    device="computes",
)
def hashhop(args: Namespace, settings: HashHopEvaluation, task: HashHopTask, change: Change) -> "pd.DataFrame":
    """Generation quality on HashHop, the fraction of a chain before the model's first error, with a full or a smaller
    cache, whose bytes are measured (Tables 2, 4).
    """
    from recurformer.heads.probes import HashHopProbes
    from recurformer.measure.hashhop import hashhop_rows

    tokenizer = open_tokenizer(args.checkpoint)
    options: dict[str, Any] = {**settings.model_dump(), "seed": args.seed, "progress": progress("sample")}
    knows_hashes_only = task.form == "tokens"
    return measure(
        args,
        change,
        partial(hashhop_rows, tokenizer=tokenizer, task=task, **options),
        repeated=HashHopProbes(tokenizer, task, HeadScores(), args.seed).repeats() if knows_hashes_only else None,
    )


@stage(
    "generation quality h_gq on HashHop at other lengths and hops",
    *SUBJECT,
    rows="one row a sample",
    metrics=[Metric("h_gq", "correct", over="hops", by=["setting", "hops", "size", "variant"])],
    device="computes",
)
def hashhop_sizes(args: Namespace, settings: HashHopSizes, task: HashHopTask, change: Change) -> "pd.DataFrame":
    """Generation quality on HashHop at lengths and hops other than those of the training."""
    import pandas as pd

    from recurformer.measure.hashhop import hashhop_rows

    tokenizer = open_tokenizer(args.checkpoint)
    options: dict[str, Any] = {"samples": settings.samples, "batch_size": settings.batch_size, "seed": args.seed}
    sizes = [(size, task.resized(hops, size)) for hops, size in settings.sizes]
    return measure(
        args,
        change,
        lambda **changed: pd.concat(
            hashhop_rows(**changed, tokenizer=tokenizer, task=sized, **options, progress=progress("sample")).assign(
                size=size, form=task.form, as_trained=sized == task
            )
            for size, sized in sizes
        ),
    )
