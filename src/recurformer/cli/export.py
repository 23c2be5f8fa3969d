"""Write a converted model with its own code, for machines without this package: transformers opens it by itself."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from recurformer.cli.arguments import InputPath, OutputPath
from recurformer.files import atomic_path


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=InputPath, help="folder of the converted model")
    parser.add_argument("exported", type=OutputPath, help="folder to write")


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_model, open_tokenizer
    from recurformer.model.export import save_with_code

    with atomic_path(args.exported, directory=True) as folder:
        save_with_code(open_model(args.checkpoint), folder)
        has_tokenizer = Path(args.checkpoint, "tokenizer_config.json").is_file()
        if has_tokenizer:
            open_tokenizer(args.checkpoint).save_pretrained(folder)
    if not has_tokenizer:
        print(f"{args.checkpoint} has no tokenizer, so {args.exported} has none: save the backbone's into it")
    print(f'AutoModelForCausalLM.from_pretrained("{args.exported}", trust_remote_code=True) opens it')
