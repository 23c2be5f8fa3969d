"""What users do with a model beside adapting it: talk to it, serve it, export it, see what computes it."""

import io
import signal
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from recurformer.cli.adapt import MODEL, model_folder
from recurformer.cli.checkpoints import open_model, open_tokenizer
from recurformer.cli.stage import COUNT, DTYPE, INDEX, OutputFolder, argument, checkpoint, stage
from recurformer.files import writing_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from transformers import TextStreamer

    from recurformer.measure.conversation import Conversation

RESET = "/reset"


@stage(
    "talk to a model in a terminal, converted or not",
    MODEL,
    argument("--tokens", type=COUNT, default=512, help="the most tokens of an answer (default: 512)"),
    DTYPE,
    device="computes",
)
def chat(args: Namespace) -> None:
    """Talk to a model in a terminal, converted or not. The answer appears as it is written.

    Its cache keeps the conversation. /reset forgets it, Ctrl-C stops an answer, Ctrl-D ends.
    """
    from transformers import TextStreamer

    from recurformer.measure.conversation import Conversation
    from recurformer.model.fused import folded

    folder = model_folder(args.model)
    tokenizer = open_tokenizer(folder)
    model = open_model(folder, args.dtype)
    conversation = Conversation(model, tokenizer, args.tokens)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # one wrong byte must not end the conversation
    print(f"{RESET} forgets the conversation, Ctrl-C stops an answer, Ctrl-D ends.")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # it ends the program; Ctrl-C ends an answer alone
    with folded(model):  # a stopped answer leaves words in its streamer, so each has its own
        _talk(conversation, lambda: TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True))


def _talk(conversation: "Conversation", new_streamer: "Callable[[], TextStreamer]") -> None:
    while True:
        try:
            turn = input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if turn.strip() == RESET:
            conversation.reset()
        elif turn.strip():
            try:
                conversation.answer(turn, new_streamer())
            except KeyboardInterrupt:
                print("\nstopped: this question and its answer are forgotten")
            except ValueError as error:
                print(f"recurformer chat: {error}", file=sys.stderr)


@stage(
    "serve a model to OpenAI's clients, converted or not",
    MODEL,
    argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s, this machine alone)"),
    argument("--port", type=INDEX, default=8000, help="port to listen at, 0: any (default: %(default)s)"),
    argument("--keep-mb", type=INDEX, default=1000, help="MB of kept states, 0: keep none (default: %(default)s)"),
    DTYPE,
    device="computes",
)
def serve(args: Namespace) -> None:
    """Serve a model to OpenAI's clients, converted or not: /v1/chat/completions and /v1/models.

    States of what was read are kept, so that neither the next turn of a conversation nor the next question about a
    document reads the same tokens again. Ctrl-C stops the server. It asks for no password.
    """
    try:
        from recurformer.cli.server import listen, make_app, server
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is missing: pip install '.[serve]'") from error
    from recurformer.measure.conversation import KeptStates, special_ids
    from recurformer.model.fused import folded

    with listen(args.host, args.port) as listening:  # a taken port is refused before the model is opened
        folder = model_folder(args.model)
        name = folder.resolve().name if Path(args.model).exists() else args.model
        model, tokenizer = open_model(folder, args.dtype), open_tokenizer(folder)
        with folded(model):
            app = make_app(name, tokenizer, KeptStates(model, args.keep_mb * 10**6, special_ids(tokenizer)))
            host, port = listening.getsockname()[:2]
            print(f"{name} at http://{f'[{host}]' if ':' in host else host}:{port}/v1, Ctrl-C stops it", flush=True)
            server(app).run(sockets=[listening])


@stage(
    "write a converted model for machines without this package",
    checkpoint("folder of the converted model"),
    argument("exported", type=OutputFolder, help="folder to write"),
    argument(
        "--stock",
        action="store_true",
        help="write a model of transformers' own instead of our code: only if every layer has windows in all of its "
        "heads or in none, of one size and 16 bits",
    ),
    argument(
        "--without-sinks",
        action="store_true",
        help="with --stock: leave out the first tokens that windows keep; longer texts are then read otherwise",
    ),
    device="spares",
)
def export(args: Namespace) -> None:
    """Write a converted model for machines without this package: with its own code, or as a model of transformers."""
    from recurformer.model.convert import save_with_code
    from recurformer.model.stock import as_stock

    if args.without_sinks and not args.stock:
        raise ValueError("--without-sinks is of --stock: the exported code keeps the first tokens")
    model = open_model(args.checkpoint)
    with writing_model(args.exported) as folder:
        if args.stock:
            as_stock(model, args.without_sinks).save_pretrained(folder)
        else:
            save_with_code(model, folder)
        has_tokenizer = Path(args.checkpoint, "tokenizer_config.json").is_file()
        if has_tokenizer:
            open_tokenizer(args.checkpoint).save_pretrained(folder)
    if not has_tokenizer:
        print(f"{args.checkpoint} has no tokenizer, so {args.exported} has none: save the backbone's into it")
    if args.without_sinks and model.config.sink_tokens:
        print(f"left out: the first {model.config.sink_tokens} tokens, which every window kept")
    trusted = "" if args.stock else ", trust_remote_code=True"
    print(f'AutoModelForCausalLM.from_pretrained("{args.exported}"{trusted}) opens it')


def _choice(u: "Tensor", A: "Tensor") -> str:
    """The name of the backend that runs such inputs, or why none does."""
    from recurformer.model.scan import choose_backend

    try:
        return choose_backend(u, A, delta_softplus=True)
    except ValueError as error:
        return f"refused, {error}"


@stage("list the implementations of the selective scan, and the ones in use")
def backends(args: Namespace) -> None:
    """List the implementations of the selective scan, and the one that runs for each kind of input, with the reason.

    The environment variable RECURFORMER_SCAN forces one of them; RECURFORMER_CACHE names the folder of the compiled
    C++ library.
    """
    import torch

    from recurformer.model.native import load_library
    from recurformer.model.scan import SCAN_BACKENDS
    from recurformer.model.scan_cuda import load_extension
    from recurformer.model.scan_inputs import ENVIRONMENT_VARIABLE, forced

    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        u, A = torch.empty(1, 1, 2, device=device), torch.empty(1, 16, device=device)
        print(f"\nselective scan on {device}, {torch.get_num_threads()} threads, by preference:")
        for name, backend in SCAN_BACKENDS.items():
            print(f"  {name:<10} {backend.text}: {backend.refuses(u, A, True) or 'available'}")
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            print(f"  {str(dtype).removeprefix('torch.')} inputs: {_choice(u.to(dtype), A)}")
    print(f"\n{ENVIRONMENT_VARIABLE}: {forced() or 'not set'}")
    print(f"mamba-ssm's CUDA kernel: {load_extension().remark}")
    library = load_library()
    print(f"C++ kernels, {library.instruction_set}: {library.remark}")
