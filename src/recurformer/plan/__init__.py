"""What a run of the workflow would do, before it starts: its jobs, the reason of each, and what they cost before."""

from recurformer.plan.costs import Cost, estimate, past_costs
from recurformer.plan.dry_run import Job, dry_run
from recurformer.plan.listing import by_job, by_rule, summary, totals

__all__ = ["Cost", "Job", "by_job", "by_rule", "dry_run", "estimate", "past_costs", "summary", "totals"]
