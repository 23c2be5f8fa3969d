"""What a job works through: sizes, from which its memory and time follow."""

from dataclasses import dataclass

from recurformer.plan.shapes import Shape


@dataclass(frozen=True)
class Work:
    """The work of one job.

    Attributes:
        kind: a name in `recurformer.plan.resources.KINDS`.
        shape: of the model.
        tokens: of the longest sequence.
        sequences: of the whole job, as many as make its tokens; parts of one where it is not read whole.
        batch: sequences in one forward pass of a process.
        scored: tokens of a sequence whose logits exist at once.
        written: tokens written one by one after each sequence.
        beta: share of heads replaced.
        models: in memory at once.
        weight_bytes: of one parameter as it is read; training holds more.
        inner_bytes: what the measurement itself holds.
        filled: bytes of the device's memory that the job may fill, and does: its limit; 0: it takes what it needs.
        processes: that train together, each with a card of its own where there are cards.
        strategy: how they share the model (`recurformer.plan.training_memory`).
        checkpointing: whether they compute activations again instead of keeping them.
    """

    kind: str
    shape: Shape
    tokens: int = 1
    sequences: float = 0
    batch: int = 1
    scored: int = 0
    written: int = 0
    beta: float = 0.0
    models: int = 1
    weight_bytes: int = 4
    inner_bytes: int = 0
    filled: int = 0
    processes: int = 1
    strategy: str = "ddp"
    checkpointing: bool = False

    @property
    def parameters(self) -> int:
        """Parameters of the model, converted as far as the work says."""
        return self.shape.parameters(self.beta)


@dataclass(frozen=True)
class Light:
    """Work that no model's size decides. Megabytes, minutes, and whether it runs on a card where a study has one."""

    memory_mb: int
    minutes: float = 1.0
    on_card: bool = False
