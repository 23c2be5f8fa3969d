"""What a run of the workflow would do, before it starts: its jobs, the reason of each, and what each of them takes, by
what it took before or by formula.
"""

from recurformer.plan.costs import FORMULA, Expected, estimate, known_costs, past_costs
from recurformer.plan.dry_run import Job, dry_run
from recurformer.plan.listing import by_job, by_rule, summary, totals
from recurformer.plan.remaining import Remaining, Task
from recurformer.plan.resources import ASSUMPTIONS

__all__ = [
    "ASSUMPTIONS",
    "FORMULA",
    "Expected",
    "Job",
    "Remaining",
    "Task",
    "by_job",
    "by_rule",
    "dry_run",
    "estimate",
    "known_costs",
    "past_costs",
    "summary",
    "totals",
]
