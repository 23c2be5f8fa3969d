"""List the implementations of the selective scan, and the one that runs for each kind of input, with the reason.

The environment variable RECURFORMER_SCAN forces one of them; RECURFORMER_CACHE names the folder of the compiled
C++ library.
"""

from argparse import Namespace
from typing import TYPE_CHECKING

from recurformer.cli.stage import stage

if TYPE_CHECKING:
    from torch import Tensor


def _choice(u: "Tensor", A: "Tensor") -> str:
    """The name of the backend that runs such inputs, or why none does."""
    from recurformer.model.scan import choose_backend

    try:
        return choose_backend(u, A, delta_softplus=True)
    except ValueError as error:
        return f"refused, {error}"


@stage("list the implementations of the selective scan, and the ones in use")
def backends(args: Namespace) -> None:
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
