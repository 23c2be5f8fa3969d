"""Operations of a block of code, counted as torch dispatches them: the meta device, which computes nothing, will do."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


class Operations(TorchDispatchMode):
    """Count additions and multiplications of matrix products and convolutions, and one operation for each number that
    any other operator makes. Views make no numbers.

        with Operations() as operations:
            model(input_ids)
        operations.total

    torch's own counter leaves out all but the products: a recurrence would cost nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func._overloadpacket in flop_registry:
            self.total += flop_registry[func._overloadpacket](*args, **kwargs, out_val=result)
        elif not func.is_view:
            self.total += sum(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result
