# Messages of a run beside Snakemake's own lines. At its start: the command that lists its jobs. Then, now and again:
# its running jobs and the time left.
import logging
import threading
import time
from contextlib import suppress

from snakemake.logging import logger
from snakemake_interface_logger_plugins.common import LogEvent

FIRST_LOOK = 2  # seconds, after which the first jobs have started
PAUSE = 30  # seconds between two looks
LONGER = 1.05  # each pause is longer by this factor: the hundredth on day two


def plan_hint():
    """How to see what a run does, before it does."""
    study = " ".join(map(os.path.relpath, workflow.configfiles))
    return f"`recurformer plan --configfile {study}` says which jobs there are, why, for how long and with what"


def as_task(job, jobs, past):
    """A job of the workflow as the estimate of what remains knows it."""
    from recurformer.plan.dry_run import Job
    from recurformer.plan.estimates import estimate
    from recurformer.plan.remaining import Task

    planned = Job(
        job.rule.name,
        tuple(map(str, job.output)),
        (),
        job.wildcards_dict,
        job.threads,
        {},
    )
    expected = estimate(planned, past, config)
    needed = (before for before in workflow.dag.dependencies[job] if before in jobs)
    return Task(
        planned,
        expected and expected.minutes,
        job.scheduler_resources,
        tuple(before.jobid for before in needed),
    )


class Listener(logging.Handler):
    """Tells an estimate of what remains about the jobs that Snakemake logs."""

    def __init__(self, remaining):
        super().__init__()
        self.remaining = remaining

    def emit(self, record):
        event = getattr(record, "event", None)
        if event == LogEvent.JOB_STARTED:
            for jobid in record.jobs:
                self.remaining.started(jobid)
        elif event == LogEvent.JOB_FINISHED:
            self.remaining.finished(record.job_id)
        elif event == LogEvent.JOB_ERROR:
            self.remaining.failed(record.jobid)


def say(text):
    """A line of Snakemake's log, which is silent where Snakemake is to be."""
    logger.info(text)


def watch(remaining):
    """Say now and again, until this process ends, what runs and for how long it still will."""
    time.sleep(FIRST_LOOK)
    pause = PAUSE
    while True:
        with suppress(Exception):  # the next look may succeed
            if remaining.running:
                say("\n".join(remaining.lines()))
        time.sleep(pause)
        pause *= LONGER


def follow_run():
    """Listen to Snakemake's log, and say what it means."""
    from recurformer.plan.estimates import known_costs
    from recurformer.plan.remaining import Remaining

    say(f"study {config['study']}: {plan_hint()}")
    jobs = {job for job in workflow.dag.needrun_jobs() if job.output}
    past = known_costs()
    limits = {name: one.value for name, one in workflow.global_resources.items()}
    capacity = {name: limit for name, limit in limits.items() if limit}
    remaining = Remaining(
        {job.jobid: as_task(job, jobs, past) for job in jobs},
        capacity,
        verb="running" if workflow.local_exec else "running or queued",
    )
    logger.addHandler(Listener(remaining))
    threading.Thread(target=watch, args=[remaining], daemon=True).start()


if workflow.output_settings.dryrun and workflow.is_main_process:
    say(plan_hint())
if workflow.is_main_process and not RECORDED:
    # a missing input would stop the run, but recordings are found by looking: their absence alone changes verdicts
    logger.warning(
        f"{RECORDED_FOLDER}: no recorded measurements there. Verdicts and tables rest on this study alone; restore the "
        "folder from the repository to count its measurements too."
    )


onstart:
    try:
        follow_run()
    except Exception as error:  # an estimate must not stop a run
        logger.warning(f"no progress lines: {error}")
