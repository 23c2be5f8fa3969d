"""A finished run as a Workflow Run RO-Crate: what was made by what and from what, for machines too."""

from recurformer.crate.entities import METADATA
from recurformer.crate.graph import Study, describe
from recurformer.crate.runs import Run, find_runs

__all__ = ["METADATA", "Run", "Study", "describe", "find_runs"]
