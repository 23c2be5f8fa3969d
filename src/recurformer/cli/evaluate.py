"""Stages that measure models on text: perplexity, likelihood, needles, and the tasks of lm-eval."""

import tempfile
from argparse import Namespace
from typing import TYPE_CHECKING

from recurformer.cli.arguments import InputPath
from recurformer.cli.metrics import Metric, perplexity_of
from recurformer.cli.stage import ARTICLES, DTYPE, MEASURED_BETA, NAME, argument, csv, progress, seed, stage
from recurformer.cli.subjects import fall_behind, measure, measured
from recurformer.study import Change, Continuation, HashHopTask, Mamba, Needle, Perplexity, Tasks, Window

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedConfig, PreTrainedModel

    from recurformer.measure.generate import NewCache


@stage(
    "perplexity on held-out articles",
    argument("--before", type=InputPath, required=True, help="folder of the original"),
    argument("--heads", type=InputPath, help="JSON file of `recurformer select`: replaced heads (default: none)"),
    argument("--mixer", default="mamba", help="what replaced them (default: mamba)"),
    argument("--trained", type=InputPath, required=True, help="folder of the trained model"),
    *(ARTICLES, NAME, MEASURED_BETA, seed("the mixers' weights and of the training"), DTYPE),
    output=csv("perplexity", "one row an article"),
    metrics=[Metric("perplexity", "negative_log_likelihood", over="tokens", by=["stage"], of=perplexity_of)],
    device="computes",
)
def perplexity(args: Namespace, settings: Perplexity, mamba: Mamba, window: Window) -> "pd.DataFrame":
    """Perplexity on held-out articles: before conversion, converted, and trained (Table 3)."""
    import pandas as pd

    from recurformer.cli.checkpoints import open_converted, open_model, open_tokenizer
    from recurformer.cli.texts import open_texts
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
    *(measured, ARTICLES),
    output=csv("needle", "one row a prompt"),
    metrics=[Metric("accuracy", "correct", over="queries", by=["method", "setting", "task"])],
    device="computes",
)
def needle(args: Namespace, settings: Needle, change: Change) -> "pd.DataFrame":
    """Find keys in a long text, by depth and length, with a full or a smaller cache."""
    from recurformer.cli.checkpoints import open_tokenizer
    from recurformer.cli.texts import open_texts
    from recurformer.measure.needle import needle_rows

    tokenizer = open_tokenizer(args.checkpoint)
    texts = tuple(open_texts(args.articles, split="validation").text)
    return measure(
        args,
        change,
        lambda model, original, new_cache: needle_rows(
            model,
            tokenizer,
            original,
            texts,
            grid=settings.grid(),
            depths=settings.depths,
            seed=args.seed,
            new_cache=new_cache,
            progress=progress("prompt"),
        ),
    )


@stage(
    "likelihood of the text after a prompt, with a full or a smaller cache",
    *(measured, ARTICLES),
    output=csv("continuation", "one row a window and 32 positions"),
    metrics=[
        Metric("perplexity", "negative_log_likelihood", over="tokens", by=["method", "setting"], of=perplexity_of),
        Metric("divergence", "divergence", over="tokens", by=["method", "setting"]),
    ],
    device="computes",
)
def continuation(args: Namespace, settings: Continuation, change: Change) -> "pd.DataFrame":
    """Likelihood of the text after a prompt, with the prompt's full or smaller cache."""
    import torch

    from recurformer.cli.checkpoints import open_model
    from recurformer.cli.texts import text_windows
    from recurformer.measure.language import continuation_rows, text_logits

    # the same text for every model and seed
    input_ids = text_windows(args, settings.prompt + settings.tokens, settings.windows, split="validation")
    untouched = open_model(args.original, args.dtype)
    expected = torch.cat(
        [text_logits(untouched, batch, settings.prompt)[0] for batch in input_ids.split(settings.batch_size)]
    )
    return measure(
        args,
        change,
        lambda model, original, new_cache: continuation_rows(
            model,
            original,
            input_ids,
            expected,
            prompt=settings.prompt,
            batch_size=settings.batch_size,
            new_cache=new_cache,
            progress=progress("window"),
        ),
    )


@stage(
    "lm-eval tasks of a trained model, converted or not",
    *(measured, ARTICLES),
    output=csv("lm_eval", "one row a metric"),
    metrics=[Metric("lm_eval", "value", by=["task", "metric"])],
    device="computes",
)
def ablation_lm_eval(args: Namespace, settings: Tasks, hashhop: HashHopTask, change: Change) -> "pd.DataFrame":
    """Evaluate a model by lm-eval tasks, through lm-eval's own HFLM."""
    from recurformer.cli.checkpoints import open_tokenizer
    from recurformer.cli.texts import open_texts
    from recurformer.data.sizes import HashHopTextSizes
    from recurformer.measure.lm_eval import LocalSettings, lm_eval_rows

    local = LocalSettings(
        open_tokenizer(args.checkpoint),
        samples=settings.samples,
        limits=dict(settings.limits),
        seed=args.seed,
        hashhop=HashHopTextSizes("official", hashhop.hash_length, hashhop.hops, hashhop.characters),
        passkey_tokens=settings.tokens,
        articles=open_texts(args.articles, split="validation"),
        window_tokens=settings.tokens,
        ruler_length=settings.ruler_length,
        num_fewshot=dict(settings.num_fewshot),
    )

    def rows_of(model: "PreTrainedModel", original: "PreTrainedConfig", new_cache: "NewCache | None") -> "pd.DataFrame":
        if new_cache is not None:
            raise ValueError(
                f"--subject {args.subject}: lm-eval makes the cache itself; measure it by needle or continuation"
            )
        with tempfile.TemporaryDirectory() as folder:
            return lm_eval_rows(model, settings.names, local, folder=folder, batch_size=settings.batch_size)

    rows = measure(args, change, rows_of)
    print(rows[["method", "setting", "task", "metric", "value", "stderr"]].to_string(index=False))
    return rows
