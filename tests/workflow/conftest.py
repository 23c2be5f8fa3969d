"""Dry runs that several tests look at, each made once."""

from functools import cache

import pytest

from tests.workflow.dry_runs import STUDIES, DryRun, link_workflow


@pytest.fixture(scope="session")
def dry(tmp_path_factory):
    """A dry run of a study, of all that it has unless targets are named."""

    @cache
    def run(study, *targets):
        folder = link_workflow(tmp_path_factory.mktemp("project"))
        return DryRun(folder, *(targets or ("all", "ablations")), "--configfile", *STUDIES[study])

    return run
