"""The paper's mixer: one Mamba block over the values of all replaced heads of a layer, side by side (Algorithm 1)."""

from typing import Any, ClassVar

from .layout import HeadLayout
from .mamba import MambaBlock


class MambaMixer(MambaBlock):
    """A Mamba block of the sizes that a RecurFormer config names; arguments as of `Mixer`."""

    reads_keys: ClassVar[bool] = False

    def __init__(self, config: Any, layout: HeadLayout, head_dim: int, layer_index: int):
        super().__init__(
            len(layout.replaced) * head_dim,
            d_state=config.mamba_d_state,
            d_conv=config.mamba_d_conv,
            expand=config.mamba_expand,
            dt_rank=config.mamba_dt_rank,
            layer_index=layer_index,
            copies=list(layout.replaced_value_heads.values()),
        )
