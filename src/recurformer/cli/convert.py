"""Stages that change the weights of a model and train none."""

from argparse import Namespace
from pathlib import Path

from recurformer.cli.arguments import COUNT, InputPath, OutputFolder
from recurformer.cli.stage import argument, checkpoint, seed, stage
from recurformer.files import writing_model
from recurformer.study import Mamba, Window


@stage(
    "replace heads by Mamba blocks, or by another mixer",
    checkpoint("folder of the backbone"),
    argument("converted", type=OutputFolder, help="folder to write"),
    argument("--heads", type=InputPath, required=True, help="JSON file written by `recurformer select`"),
    seed("the mixers' initial weights"),
    argument("--mixer", default="mamba", help="a name in recurformer.model.mixers (default: mamba)"),
    device="copies",
)
def convert(args: Namespace, mamba: Mamba, window: Window) -> dict[str, float]:
    """Replace the chosen heads by one Mamba block, or by another mixer, in each layer (Algorithm 1)."""
    from recurformer.cli.checkpoints import open_converted, open_tokenizer, save_checkpoint

    sizes = mamba.model_dump() | window.model_dump()
    model = open_converted(args.checkpoint, args.heads, args.mixer, args.seed, **sizes)
    save_checkpoint(args.converted, model, open_tokenizer(args.checkpoint))
    return {"parameters": model.num_parameters()}


@stage(
    "write a converted model with its code, for machines without this package",
    checkpoint("folder of the converted model"),
    argument("exported", type=OutputFolder, help="folder to write"),
    device="copies",
)
def export(args: Namespace) -> None:
    """Write a converted model with its own code, for machines without this package: transformers opens it by itself."""
    from recurformer.cli.checkpoints import open_model, open_tokenizer
    from recurformer.model.convert import save_with_code

    with writing_model(args.exported) as folder:
        save_with_code(open_model(args.checkpoint), folder)
        has_tokenizer = Path(args.checkpoint, "tokenizer_config.json").is_file()
        if has_tokenizer:
            open_tokenizer(args.checkpoint).save_pretrained(folder)
    if not has_tokenizer:
        print(f"{args.checkpoint} has no tokenizer, so {args.exported} has none: save the backbone's into it")
    print(f'AutoModelForCausalLM.from_pretrained("{args.exported}", trust_remote_code=True) opens it')


@stage(
    "merge key-value heads by their mean",
    checkpoint("folder of the backbone"),
    argument("pooled", type=OutputFolder, help="folder to write"),
    argument("--kv-heads", type=COUNT, required=True, help="key-value heads of a layer that remain"),
    device="copies",
)
def pool_kv(args: Namespace) -> dict[str, float]:
    """Merge key-value heads by their mean: another way to a smaller cache (arXiv 2305.13245)."""
    from recurformer.cli.checkpoints import open_model, open_tokenizer, save_checkpoint
    from recurformer.model.convert import pool_kv_heads

    model = pool_kv_heads(open_model(args.checkpoint), args.kv_heads)
    save_checkpoint(args.pooled, model, open_tokenizer(args.checkpoint))
    return {"parameters": model.num_parameters()}
