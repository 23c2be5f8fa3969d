"""Talk to a model in a terminal, converted or not. The answer appears as it is written.

Its cache keeps the conversation. /reset forgets it, Ctrl-C stops an answer, Ctrl-D ends.
"""

import io
import sys
from argparse import Namespace

from recurformer.cli.adapt import model_folder
from recurformer.cli.arguments import COUNT, InputPath
from recurformer.cli.stage import argument, stage

RESET = "/reset"
REPLACED = "\N{REPLACEMENT CHARACTER}"


@stage(
    "talk to a model in a terminal, converted or not",
    argument("model", type=InputPath, help="folder of the model, or its name on the model hub"),
    argument("--tokens", type=COUNT, default=512, help="the most tokens of an answer (default: 512)"),
    device="computes",
)
def chat(args: Namespace) -> None:
    from transformers import TextStreamer

    from recurformer.cli.checkpoints import open_model, open_tokenizer
    from recurformer.measure.generate import Conversation

    folder = model_folder(args.model)
    tokenizer = open_tokenizer(folder)
    conversation = Conversation(open_model(folder), tokenizer, args.tokens)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # one wrong byte must not end the conversation
    print(f"{RESET} forgets the conversation, Ctrl-C stops an answer, Ctrl-D ends.")
    while True:
        try:
            turn = input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if turn.strip() == RESET:
            conversation.reset()
        elif REPLACED in turn:
            print(f"recurformer chat: this line is left out, it holds bytes that are not {sys.stdin.encoding}",
                  file=sys.stderr)  # fmt: skip
        elif turn.strip():
            try:
                conversation.answer(turn, TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True))
            except KeyboardInterrupt:
                print("\nstopped: this question and its answer are forgotten")
            except ValueError as error:
                print(f"recurformer chat: {error}", file=sys.stderr)
