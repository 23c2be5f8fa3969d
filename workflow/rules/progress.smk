# For how long a run will go on: said before it starts, in a dry run too.
import logging
from contextlib import suppress

from recurformer.records import find_records
from snakemake.logging import logger
from snakemake_interface_logger_plugins.common import LogEvent

DEFAULT_SECONDS = ROOT / "workflow/seconds.yaml"
MOST_NAMED = 20


def unknown_results():
    """Results that a job wrote after its run had been killed."""
    dag = workflow.dag
    done = [job for job in dag.jobs if job.output and not dag.needrun(job)]
    files = sorted(str(job.output[0]) for job in done if dag.reason(job).no_metadata)
    if files:
        logger.info(
            f"results written without their run: {len(files)}. Changed settings do not repeat them"
            f" (docs/clusters.md, when something stops): {' '.join(files[:MOST_NAMED])}"
            + " …" * (len(files) > MOST_NAMED)
        )


def time_left():
    """All jobs, on the scarcest resource, and at least the longest of them. A job is expected to take as long as it did
    in this study's folders before, else as jobs of its rule did on two cores, where this is the default study.
    """
    jobs = [job for job in workflow.dag.needrun_jobs() if job.output]
    folders = [Path(below(folder)) for folder in ("results", "figures")]
    earlier = {
        str(place): record["seconds"] for place, record in find_records(*folders)
    }
    usual = read_yaml(DEFAULT_SECONDS) if config["study"] == "default" else {}
    seconds = {}
    for job in jobs:
        took = [earlier[file] for file in job.output if file in earlier]
        seconds[job] = took[0] if took else usual.get(job.rule.name)
    known = {job: value for job, value in seconds.items() if value is not None}
    shares = [0.0, *known.values()]
    for name, limit in workflow.global_resources.items():
        if limit.value:
            used = sum(
                value * job.scheduler_resources.get(name, 0)
                for job, value in known.items()
            )
            shares.append(used / limit.value)
    minutes = max(shares) / 60
    told = (
        f"about {minutes:.0f} minutes"
        if minutes >= 2
        else f"about {60 * minutes:.0f} seconds"
    )
    untold = f"no earlier run tells the time of {len(jobs) - len(known)}"
    words = [told] * bool(known) + [untold] * (len(known) < len(jobs))
    if jobs:
        logger.info(
            f"study {config['study']}: {len(jobs)} jobs to go, {'; '.join(words)}"
        )
        unknown_results()


class TimeLeft(logging.Handler):
    """Says it when Snakemake knows the jobs."""

    def emit(self, record):
        with suppress(Exception):  # an estimate must not stop a run
            if getattr(record, "event", None) == LogEvent.RUN_INFO:
                time_left()


if workflow.is_main_process:
    logger.addHandler(TimeLeft())
if workflow.is_main_process and not RECORDED:
    # a missing input would stop the run, but recordings are found by looking: their absence alone changes verdicts
    logger.warning(
        f"{RECORDED_FOLDER}: no recorded measurements there. Verdicts and tables rest on this study alone; restore the "
        "folder from the repository to count its measurements too."
    )
