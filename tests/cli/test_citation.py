"""CITATION.cff says the same as the package."""

import tomllib
from pathlib import Path

import yaml

from recurformer import __version__

ROOT = Path(__file__).parents[2]


def test_the_citation_is_of_this_package_and_its_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == project["version"] == __version__
    assert citation["license"] == project["license"]
    assert citation["references"][0]["url"] == "https://arxiv.org/abs/2410.12850"
