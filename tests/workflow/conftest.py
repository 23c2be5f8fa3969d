"""Dry runs that several tests look at, each made once."""

import pytest

from tests.workflow.dry_runs import STUDIES, DryRun, link_workflow


@pytest.fixture(scope="session")
def dry(tmp_path_factory):
    """A dry run of targets of a study, made once."""
    made = {}

    def run(target, study="default"):
        if (target, study) not in made:
            folder = link_workflow(tmp_path_factory.mktemp("project"))
            made[target, study] = DryRun(folder, target, "--configfile", *STUDIES[study])
        return made[target, study]

    return run
