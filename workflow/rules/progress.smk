# For how long a run will go on: said before it starts, in a dry run too, and now and again.
import logging
import time
from collections import defaultdict
from contextlib import suppress
from statistics import median

from recurformer.records import find_records
from snakemake.logging import logger
from snakemake_interface_logger_plugins.common import LogEvent

PAUSE = 30  # seconds, at least, between two such lines
DEFAULT_SECONDS = ROOT / "workflow/seconds.yaml"


class TimeLeft(logging.Handler):
    """Follows the jobs that Snakemake logs. A job is expected to take as long as it did in this folder before, else as
    the finished jobs of its rule, else as in the recorded run of the default study, where this is that study.
    """

    def __init__(self):
        super().__init__()
        self.open, self.started, self.spoke = {}, {}, 0.0
        self.earlier, self.usual, self.took = {}, {}, defaultdict(list)

    def begin(self):
        """The jobs are known."""
        self.open = {
            job.jobid: job for job in workflow.dag.needrun_jobs() if job.output
        }
        for folder in (below("results"), below("figures")):
            for place, record in find_records(Path(folder)):
                self.earlier[str(place)] = record["seconds"]
        if config["study"] == "default":
            self.usual = read_yaml(DEFAULT_SECONDS)
        self.say()

    def expected(self, job):
        """Seconds; None where nothing is known."""
        known = [self.earlier[file] for file in job.output if file in self.earlier]
        known = known or self.took[job.rule.name]
        return median(known) if known else self.usual.get(job.rule.name)

    def say(self):
        """All open jobs, on the scarcest resource, and at least the longest of them."""
        seconds = {jobid: self.expected(job) for jobid, job in self.open.items()}
        known = {jobid: value for jobid, value in seconds.items() if value is not None}
        shares = [
            sum(
                value * self.open[jobid].scheduler_resources.get(name, 0)
                for jobid, value in known.items()
            )
            / limit.value
            for name, limit in workflow.global_resources.items()
            if limit.value
        ]
        minutes = max([0.0, *shares, *known.values()]) / 60
        long = (
            f"{minutes / 60:.1f} hours" if minutes >= 120 else f"{minutes:.0f} minutes"
        )
        told = f"about {long if minutes >= 2 else f'{60 * minutes:.0f} seconds'}"
        untold = f"no earlier run tells the time of {len(self.open) - len(known)}"
        words = ([told] if known else []) + (
            [untold] if len(known) < len(self.open) else []
        )
        if self.open:
            logger.info(
                f"study {config['study']}: {len(self.open)} jobs to go, {'; '.join(words)}"
            )
        self.spoke = time.monotonic()

    def emit(self, record):
        event, now = getattr(record, "event", None), time.monotonic()
        with suppress(Exception):  # an estimate must not stop a run
            if event == LogEvent.RUN_INFO:
                self.begin()
            elif event == LogEvent.JOB_STARTED:
                self.started.update(dict.fromkeys(record.jobs, now))
            elif event == LogEvent.JOB_FINISHED and (
                job := self.open.pop(record.job_id, None)
            ):
                self.took[job.rule.name].append(now - self.started[record.job_id])
                if now - self.spoke > PAUSE:
                    self.say()


if workflow.is_main_process:
    logger.addHandler(TimeLeft())
if workflow.is_main_process and not RECORDED:
    # a missing input would stop the run, but recordings are found by looking: their absence alone changes verdicts
    logger.warning(
        f"{RECORDED_FOLDER}: no recorded measurements there. Verdicts and tables rest on this study alone; restore the "
        "folder from the repository to count its measurements too."
    )
