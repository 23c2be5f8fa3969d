"""Stages that profile heads, score them, and choose those to replace."""

import json
from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING

from recurformer.cli.arguments import BETA, SEED, InputPath, OutputPath
from recurformer.cli.metrics import Metric
from recurformer.cli.stage import ARTICLES, NAME, argument, checkpoint, csv, parquet, progress, seed, stage
from recurformer.files import atomic_path
from recurformer.study import HashHopTask, HeadScores, Profiling, RecencyRatio, RecencySettings, Selection

if TYPE_CHECKING:
    import pandas as pd

    from recurformer.heads.profile import HeadProfile

PROFILE = argument("profile", type=OutputPath, help="Parquet file to write")


def _keep_profile(profile: "HeadProfile", args: Namespace) -> dict[str, float]:
    """Write a profile; its mean ratio, and the fraction of its heads that are recency-aware in most samples."""
    replace(profile, model=args.name).save(args.profile)
    ratios = profile.rr[:, profile.candidates]
    aware = profile.ra_i[profile.candidates] > len(ratios) / 2
    return {"mean_rr": ratios.mean().item(), "recency_aware": aware.double().mean().item()}


@stage(
    "recency ratios of every head on text",
    *(checkpoint(), PROFILE, ARTICLES, NAME, seed("the choice of windows")),
    device="computes",
)
def profile(args: Namespace, settings: Profiling) -> dict[str, float]:
    """Recency ratios of every head over windows of text (equation 1; appendix B)."""
    from recurformer.cli.checkpoints import open_model
    from recurformer.cli.texts import text_windows
    from recurformer.heads.profile import profile_heads

    input_ids = text_windows(args, settings.tokens, settings.samples, seed=args.seed)
    measured = profile_heads(
        open_model(args.checkpoint),
        input_ids,
        window=settings.window,
        threshold=settings.threshold,
        progress=progress("window"),
    )
    return _keep_profile(measured, args)


@stage(
    "recency ratios of every head on HashHop", *(checkpoint(), PROFILE, NAME, seed("the samples")), device="computes"
)
def profile_hashhop(args: Namespace, settings: RecencyRatio, task: HashHopTask) -> dict[str, float]:
    """Recency ratios of every head over HashHop samples, for models that read only HashHop."""
    from recurformer.cli.checkpoints import open_model, open_tokenizer
    from recurformer.data.hashhop import hashhop_dataset
    from recurformer.heads.profile import profile_heads

    dataset = hashhop_dataset(task, open_tokenizer(args.checkpoint), seed=args.seed)
    batch = dataset.collate([dataset[index] for index in range(settings.samples)])
    measured = profile_heads(
        open_model(args.checkpoint),
        batch["input_ids"],
        window=settings.window,
        threshold=settings.threshold,
        attention_mask=batch.get("attention_mask"),
        progress=progress("sample"),
    )
    return _keep_profile(measured, args)


@stage(
    "scores of every head by other selectors, measured on the model",
    checkpoint("folder of the model, before any head is replaced"),
    argument("--articles", type=InputPath, help="Parquet file of articles (default: prompts of HashHop)"),
    argument("--profile", type=InputPath, help="head profile; its rankings are written too"),
    *(NAME, seed("all samples")),
    argument("--random-seeds", nargs="+", type=SEED, default=[0], help="seeds of the random rankings (default: 0)"),
    output=parquet("scores"),
    device="computes",
)
def head_scores(args: Namespace, settings: HeadScores, task: HashHopTask) -> "pd.DataFrame":
    """Scores of every head by selectors other than RA-I: lookup without the head, echo, induction, sensitivity."""
    import pandas as pd

    from recurformer.cli.checkpoints import open_model, open_tokenizer
    from recurformer.cli.texts import open_texts
    from recurformer.heads.probes import HashHopProbes, Probes, TextProbes
    from recurformer.heads.profile import HeadProfile
    from recurformer.heads.scores import SCORES
    from recurformer.heads.select import profile_rows, score_rows

    tokenizer = open_tokenizer(args.checkpoint)
    probes: Probes
    if args.articles is None:
        probes = HashHopProbes(tokenizer, task, settings, args.seed)
    else:
        texts = open_texts(args.articles, split="train").text.tolist()
        probes = TextProbes(tokenizer, texts, settings, args.seed)
    frames = []
    if args.profile:
        frames.append(profile_rows(HeadProfile.load(args.profile), args.name, args.seed, args.random_seeds))
    model = open_model(args.checkpoint)
    for by in settings.by:
        scores = SCORES[by](model, probes, settings, progress(by))
        frames.append(score_rows(args.name, by, args.seed, scores))
    return pd.concat(frames, ignore_index=True)


@stage(
    "dependence of the choice of heads on k and alpha",
    *(checkpoint(), ARTICLES, NAME, seed("the choice of windows")),
    output=csv("compared"),
    metrics=[Metric("rank_correlation", "rank_correlation", by=["window", "threshold"])],
    device="computes",
)
def ra_i_settings(args: Namespace, settings: Profiling, others: RecencySettings) -> "pd.DataFrame":
    """The heads that RA-I chooses with a window k and a threshold alpha other than the defaults."""
    from recurformer.cli.checkpoints import open_model
    from recurformer.cli.texts import text_windows
    from recurformer.heads.profile import profile_windows
    from recurformer.heads.select import compare_settings

    input_ids = text_windows(args, settings.tokens, settings.samples, seed=args.seed)
    profiles = profile_windows(
        open_model(args.checkpoint),
        input_ids,
        sorted({settings.window, *others.windows}),
        threshold=settings.threshold,
        progress=progress("window"),
    )
    profiles = [replace(measured, model=args.name) for measured in profiles]
    (default,) = (measured for measured in profiles if measured.window == settings.window)
    thresholds = sorted({settings.threshold, *others.thresholds})
    return compare_settings(profiles, default, thresholds, others.betas, others.units)


@stage(
    "choose the heads to replace",
    argument("profile", type=InputPath, help="Parquet file written by a profiling stage"),
    argument("heads", type=OutputPath, help="JSON file to write: replaced query heads per layer"),
    argument("--beta", type=BETA, required=True, help="fraction of heads to replace, from 0 to 1"),
    seed("a random ranking"),
    argument("--scores", type=InputPath, help="Parquet file written by head-scores, for rankings it measures"),
)
def select(args: Namespace, settings: Selection) -> dict[str, float]:
    """Choose the heads to replace: the fraction beta with the highest RA-I (section 3.1)."""
    from recurformer.heads.select import chosen_heads

    heads = chosen_heads(args.profile, args.scores, settings, args.beta, args.seed)
    with atomic_path(args.heads) as path:
        path.write_text(json.dumps({"beta": args.beta, **settings.model_dump(), "heads": heads}) + "\n")
    return {"heads_replaced": sum(map(len, heads)), "layers_changed": sum(map(bool, heads))}
