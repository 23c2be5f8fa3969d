"""Stages that look at the heads of a model before any is replaced: profiles, scores, averaged attention."""

from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING

from recurformer.cli.checkpoints import open_model, open_tokenizer
from recurformer.cli.resumable import CHECKPOINTS, resumable_run
from recurformer.cli.stage import (
    ARTICLES,
    DTYPE,
    NAME,
    SEED,
    InputPath,
    Metric,
    OutputPath,
    argument,
    checkpoint,
    progress,
    rows_argument,
    seed,
    stage,
    write_rows,
)
from recurformer.study import (
    HashHopTask,
    HeadScores,
    Mamba,
    MixerPrices,
    Prices,
    Profiling,
    RecencyRatio,
    RecencySettings,
    SinkHead,
    TextWindows,
    Window,
)

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
    rows="one row a head and ranking",
    device="computes",
)
def head_scores(args: Namespace, settings: HeadScores, task: HashHopTask) -> "pd.DataFrame":
    """Scores of every head by selectors other than RA-I: lookups, attention to what comes again, a window."""
    import pandas as pd

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
    "what each group of heads loses by fewer tokens and fewer bits",
    *(checkpoint("folder of the model, before any head is replaced"), rows_argument("one row a group and choice")),
    *(CHECKPOINTS, ARTICLES, NAME, seed("all samples")),
    device="computes",
)
def prices(args: Namespace, settings: Prices) -> "pd.DataFrame":
    """Price windows of all sizes and bits for every group of heads, on text with lookups hidden in it."""
    from recurformer.cli.texts import text_windows
    from recurformer.recover.budget import CHECKED, PRICED, checked, price_list, text_with_lookups
    from recurformer.recover.kept import KeptSteps

    text = text_windows(args, settings.tokens, PRICED, seed=args.seed)
    tokenizer = open_tokenizer(args.checkpoint)
    model, weight = open_model(args.checkpoint, "float32"), settings.needle_weight
    with resumable_run(args, args.rows) as folder:
        step = KeptSteps(folder, [model], [text]).result
        rows = price_list(model, tokenizer, text, args.seed, progress("sample"), step, weight)
        if settings.checked:
            input_ids, _ = text_with_lookups(tokenizer, text, args.seed, weight)
            rows = checked(model, rows, input_ids[:CHECKED], settings.checked, args.seed, step)
        rows = rows.assign(model=args.name, seed=args.seed, needle_weight=weight)
        write_rows(rows, args.rows)
    return rows


@stage(
    "what each group of heads loses to a mixer with a state",
    *(checkpoint("folder of the model, before any head is replaced"), ARTICLES, NAME, seed("all samples and weights")),
    argument("--prices", type=InputPath, required=True, help="written by prices, of the same model and texts"),
    rows="one row a group and mixer",
    metrics=[Metric("cost", "cost", by=["mixer"])],
    device="computes",
)
def mixer_prices(
    args: Namespace, settings: MixerPrices, prices: Prices, mamba: Mamba, window: Window
) -> "pd.DataFrame":
    """Price mixers with a state in the place of every group of heads, solved in closed form, on the text of prices."""
    import pandas as pd

    from recurformer.cli.texts import text_windows
    from recurformer.recover.budget import PRICED
    from recurformer.recover.states import price_mixers
    from recurformer.results.frames import require

    price_list = require(pd.read_parquet(args.prices), "prices")
    for name, asked in {**prices.model_dump(), "model": args.name, "seed": args.seed}.items():
        if name in price_list and (other := price_list[name].iloc[0]) != asked:
            raise ValueError(
                f"--prices {args.prices}: its {name} is {other}, asked for is {asked}; give the prices of it"
            )
    text = text_windows(args, prices.tokens, PRICED + settings.solved_windows, seed=args.seed)
    model, tokenizer = open_model(args.checkpoint, "float32"), open_tokenizer(args.checkpoint)
    shown, sizes = progress("sample"), mamba.model_dump() | window.model_dump()
    rows = price_mixers(
        model, tokenizer, text, settings.mixers, price_list, args.seed, shown, prices.needle_weight, **sizes
    )
    return rows.assign(model=args.name, seed=args.seed, needle_weight=prices.needle_weight)


@stage(
    "dependence of the choice of heads on k and alpha",
    *(checkpoint(), ARTICLES, NAME, seed("the choice of windows")),
    rows="one row a setting",
    metrics=[Metric("rank_correlation", "rank_correlation", by=["window", "threshold"])],
    device="computes",
)
def ra_i_settings(args: Namespace, settings: Profiling, others: RecencySettings) -> "pd.DataFrame":
    """The heads that RA-I chooses with a window k and a threshold alpha other than the defaults."""
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


MAPPED = (checkpoint("folder of the model before conversion"), ARTICLES, NAME, seed("the choice of windows"))
"""The arguments that all of these stages take."""


@stage("value norms, attention and contributions of a sink head", *MAPPED, rows="one row a token", device="computes")
def sink(args: Namespace, settings: TextWindows, shown: SinkHead) -> "pd.DataFrame":
    """Value norms, attention and contributions of one head, named or the one with the strongest sink (Figure 2)."""
    from recurformer.cli.texts import text_windows
    from recurformer.measure.maps import sink_statistics

    input_ids = text_windows(args, settings.tokens, settings.samples, seed=args.seed)
    model = open_model(args.checkpoint)
    return sink_statistics(model, input_ids, args.name, shown.layer, shown.head, progress=progress("window"))


@stage(
    "contributions of the first token and of the others",
    *MAPPED,
    rows="one row a norm",
    metrics=[Metric("contribution", "mean", by=["norm", "tokens"])],
    device="computes",
)
def contribution(args: Namespace, settings: TextWindows) -> "pd.DataFrame":
    """Contribution of the first token to attention's output, compared with the other tokens (Table 5)."""
    from recurformer.cli.texts import text_windows
    from recurformer.measure.maps import contribution_table, token_contributions

    input_ids = text_windows(args, settings.tokens, settings.samples, seed=args.seed)
    contributions = token_contributions(open_model(args.checkpoint), input_ids, progress=progress("window"))
    return contribution_table(contributions, args.name)


@stage(
    "averaged attention maps",
    *MAPPED,
    argument("--profile", type=InputPath, required=True, help="head profile of the model"),
    rows="one row a pair of tokens",
    device="computes",
)
def attention_map(args: Namespace, settings: TextWindows) -> "pd.DataFrame":
    """Attention of a high, a middle and a low RA-I head, averaged over windows (Figure 5)."""
    from recurformer.cli.texts import text_windows
    from recurformer.heads.profile import HeadProfile
    from recurformer.measure.maps import attention_maps

    input_ids = text_windows(args, settings.tokens, settings.samples, seed=args.seed)
    profile = HeadProfile.load(args.profile)
    return attention_maps(open_model(args.checkpoint), input_ids, profile, args.name, progress=progress("window"))


@stage(
    "weights that attention and Mamba give to earlier tokens",
    *(*MAPPED, DTYPE),
    argument("--trained", type=InputPath, required=True, help="folder of the converted and trained model"),
    argument("--profile", type=InputPath, required=True, help="head profile of the model before conversion"),
    rows="one row an earlier token",
    device="computes",
)
def influence(args: Namespace, settings: TextWindows) -> "pd.DataFrame":
    """Weights that a recency-aware head, and the Mamba block that replaces it, give to earlier tokens (Figure 1)."""
    from recurformer.cli.texts import text_windows
    from recurformer.heads.profile import HeadProfile
    from recurformer.measure.influence import measure_influence

    return measure_influence(
        open_model(args.checkpoint, args.dtype),
        open_model(args.trained, args.dtype),
        text_windows(args, settings.tokens, settings.samples, seed=args.seed),
        HeadProfile.load(args.profile),
        args.name,
    )
