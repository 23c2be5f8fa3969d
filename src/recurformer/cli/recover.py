"""Convert a model and let it learn from its original by one recipe, an arm of the recovery experiment."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from recurformer.cli.arguments import InputPath, OutputPath, add_block, read_block
from recurformer.cli.curves import add_curve_arguments, curve_of, keep_curve, keep_rows
from recurformer.cli.progress import progress
from recurformer.cli.training import Rows, add_training_arguments, train_and_keep
from recurformer.study import Arm, Mamba, Training


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=InputPath, help="folder of the original")
    parser.add_argument("--heads", type=InputPath, required=True, help="JSON file written by `recurformer select`")
    parser.add_argument("--arm", required=True, help="name of the recipe in the measurements")
    add_curve_arguments(parser, required=True)
    parser.add_argument(
        "--layer-errors", type=OutputPath, required=True, help="CSV file to write: what the closed form left, by layer"
    )
    add_training_arguments(parser)
    add_block(parser, Training)
    add_block(parser, Arm, "arm-")
    add_block(parser, Mamba)


def run(args: Namespace) -> None:
    from transformers import set_seed

    from recurformer.cli.checkpoints import open_model, open_texts, open_tokenizer, read_heads
    from recurformer.corpora.windows import windows
    from recurformer.model.convert import convert
    from recurformer.recover.arm import run_arm

    arm = read_block(args, Arm, "arm-")
    settings = read_block(args, Training).model_dump() | arm.training()
    tokenizer = open_tokenizer(args.checkpoint)
    texts = open_texts(args.articles, split="train").text.tolist()
    input_ids = windows(texts, tokenizer, tokens=args.tokens, seed=args.seed)
    original = open_model(args.checkpoint, dtype="float32")
    set_seed(args.seed)
    sizes = read_block(args, Mamba).model_dump() | arm.window()
    model = convert(original, read_heads(args.heads), arm.mixer, **sizes).eval()

    def learn(folder: Path, on_log: Rows | None) -> None:
        curve = curve_of(args, original, model, tokenizer, input_ids, folder)
        errors = run_arm(original, model, input_ids, curve=curve, folder=folder, seed=args.seed, on_log=on_log,
            bf16=True, progress=progress("calibrate: layer"), **arm.ways(), **settings)  # fmt: skip
        keep_rows(args, errors, args.layer_errors, args.arm, arm.mixer)
        keep_curve(args, curve, args.arm)

    train_and_keep(args, model, tokenizer, learn)
