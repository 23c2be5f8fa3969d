"""Say which implementations of the selective scan are there, which one runs for which input, and why.

The environment variable RECURFORMER_SCAN forces one of them; RECURFORMER_CACHE moves the folder in which the compiled
C++ library is kept.
"""

import os
from argparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    """Add the stage's arguments: none."""


def _devices() -> list[str]:
    import torch

    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def run(args: Namespace) -> None:
    import torch

    from recurformer.model.native import load_library
    from recurformer.model.scan import ENVIRONMENT_VARIABLE, SCAN_BACKENDS, choose_backend

    for device in _devices():
        u, A = torch.empty(1, 1, 2, device=device), torch.empty(1, 16, device=device)
        print(f"\nselective scan on {device}, {torch.get_num_threads()} threads, by preference:")
        for name, backend in SCAN_BACKENDS.items():
            print(f"  {name:<10} {backend.text}: {backend.refuses(u, A, True) or 'available'}")
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            name = str(dtype).removeprefix("torch.")
            print(f"  {name} inputs: {choose_backend(u.to(dtype), A, True)}")
    forced = os.environ.get(ENVIRONMENT_VARIABLE)
    print(f"\n{ENVIRONMENT_VARIABLE}: {forced or 'not set'}")
    library = load_library()
    print(f"C++ kernels, {library.instruction_set}: {library.remark}")
