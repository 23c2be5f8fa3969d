"""The registry of mixers, by name."""

from .mixer_base import Mixer
from .mixer_gated import GatedMixer
from .mixer_linear import LinearMixer
from .mixer_mamba import MambaMixer
from .mixer_mean import MeanMixer
from .mixer_retention import RetentionMixer
from .mixer_window import WindowMixer
from .mixer_window_state import WindowStateMixer
from .mixer_zero import ZeroMixer

MIXERS: dict[str, type[Mixer] | type[MambaMixer]] = {
    "mamba": MambaMixer,
    "window": WindowMixer,
    "linear": LinearMixer,
    "gated": GatedMixer,
    "retention": RetentionMixer,
    "window_state": WindowStateMixer,
    "mean": MeanMixer,
    "zero": ZeroMixer,
}
"""A mixer's parameters bear its name in a checkpoint: `model.layers.0.self_attn.mamba.A_log`."""
