"""How far two results trees agree, measurement by measurement."""

from argparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("recorded", help="folder of the reference run")
    parser.add_argument("results", help="folder of the run to compare")


def run(args: Namespace) -> None:
    from recurformer.render.compare import compare, summary

    print(summary(compare(args.recorded, args.results)))
