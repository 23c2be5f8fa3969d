"""The stage that adapts a user's own model, and where that model is."""

import re
from argparse import Namespace
from pathlib import Path

from recurformer.cli.resumable import CHECKPOINTS, resumable_run
from recurformer.cli.stage import (
    BETA,
    BUDGET,
    COUNT,
    RATE,
    SEED,
    InputPath,
    OutputFolder,
    argument,
    progress,
    stage,
)
from recurformer.files import writing_model
from recurformer.recover.recipe import RECIPES, TOKENS

MODEL = argument("model", type=InputPath, help="folder of the model, or its name on the model hub")
HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def model_folder(model: str) -> Path:
    """The folder itself, or the newest files of that name from the hub.

    Raises:
        ValueError: there is no such folder, and the name cannot be one of the hub's.
        ResourceError: the hub has no such model, or cannot be reached.
    """
    folder = Path(model)
    if folder.exists():
        return folder
    first, slash, _ = model.partition("/")
    if not HUB_NAME.fullmatch(model) or (slash and Path(first).exists()):
        raise ValueError(f"{model}: no such folder")
    from recurformer.data.backbones import HUB_FILES_AND_CARD
    from recurformer.data.fetch import ResourceError, fetch_snapshot

    try:
        return fetch_snapshot(model, HUB_FILES_AND_CARD)
    except ResourceError as error:
        raise ResourceError(f"{model}: no such folder, and as a name of the model hub: {error}") from error


@stage(
    "make a model's cache smaller in one command, and measure what that costs",
    MODEL,
    argument("out", type=OutputFolder, help="folder to write"),
    argument("--beta", type=BETA, help="fraction of heads to replace, by RA-I (default with --mixer: 0.5)"),
    argument(
        "--cache",
        type=BUDGET,
        help="fraction of the cache that may be left after --tokens tokens (default: a quarter of what can be chosen): "
        "each group of heads keeps the tokens and bits that are worth most; instead of --beta and --mixer",
    ),
    argument(
        "--loss",
        type=RATE,
        help="instead of --cache: the divergence from the original, in nats a token on the text that is priced, below "
        "which the smallest cache stays",
    ),
    argument(
        "--text",
        type=InputPath,
        nargs="+",
        required=True,
        help=".txt or .md files, folders of them, .parquet or .jsonl files with a column text, or a data set of the "
        "hub (OWNER/NAME, or OWNER/NAME:CONFIG)",
    ),
    argument(
        "--minutes",
        type=RATE,
        help="time for everything, training included (default: 30 with --beta, --mixer; else nothing is trained)",
    ),
    argument("--tokens", type=COUNT, default=TOKENS, help=f"length of a window (default: {TOKENS})"),
    argument(
        "--mixer",
        choices=list(RECIPES),
        help="replacement of the heads: the paper's Mamba blocks (default with --beta), or attention to a window, with "
        "a recurrent state of all tokens",
    ),
    argument("--seed", type=SEED, default=0, help="seed of everything random (default: 0)"),
    CHECKPOINTS,
    device="computes",
)
def adapt(args: Namespace) -> dict[str, float]:
    """Make a model's cache smaller, and measure what that costs: by a budget (--cache or --loss; the default), which
    trains only with --minutes, or by a mixer in the place of heads (--beta, --mixer, alone or together), which is
    trained.
    """
    import torch
    from tabulate import tabulate

    from recurformer.cli.checkpoints import open_config, open_model, open_tokenizer
    from recurformer.data.backbones import base_facts
    from recurformer.data.documents import read_documents
    from recurformer.recover.adapt import adapt
    from recurformer.render.adaptation import COMPARED, compared, write_adaptation

    given = [name for name in ("cache", "loss", "beta", "mixer") if getattr(args, name) is not None]
    if len(given) > 1 and given[0] in {"cache", "loss"}:
        raise ValueError(f"--{given[0]} and --{given[1]}: give one of them; each says by itself what is kept")
    documents = read_documents(args.text, args.seed)
    folder = model_folder(args.model)
    tokenizer = open_tokenizer(folder)
    saved = getattr(torch, str(open_config(folder).dtype or "float32").removeprefix("torch."))
    model = open_model(folder, dtype="float32")
    longest = getattr(model.config, "max_position_embeddings", None) or args.tokens
    if args.tokens > longest:
        raise ValueError(f"--tokens {args.tokens}: the model reads at most {longest}")
    if Path(args.out, "adaptation.json").exists():
        print(f"{args.out}: holds an earlier result, which this one will replace", flush=True)
    with resumable_run(args, args.out) as state:
        adapted, measurements = adapt(
            model,
            tokenizer,
            documents,
            folder=state,
            beta=args.beta,
            cache=args.cache,
            loss=args.loss,
            minutes=args.minutes,
            tokens=args.tokens,
            seed=args.seed,
            dtype=saved,
            recipe=RECIPES[args.mixer] if args.mixer else None,
            progress=progress,
            say=lambda line: print(line, flush=True),
        )
        measurements["base"] = base_facts(args.model, folder)
        with writing_model(args.out) as written:
            adapted.to(saved).save_pretrained(written)
            tokenizer.save_pretrained(written)
            drawn = write_adaptation(written, measurements)
    print(tabulate(compared(measurements), headers=COMPARED, disable_numparse=True))
    pictures = "and pictures" if drawn else "but no pictures (pip install matplotlib brings what draws them)"
    print(f"{args.out}: the adapted model, with its model card README.md {pictures}")
    quality = measurements["stages"][-1]
    cache = {f"cs/{row['length']}": row["adapted"] / row["original"] for row in measurements["cache"]}
    found = {f"passkeys/{row['length']}": row["found"] for row in measurements["passkeys"]["adapted"] if "asked" in row}
    return {"perplexity": quality["perplexity"], "kl": quality["divergence"], **cache, **found}
