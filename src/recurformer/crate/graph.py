"""The graph of a crate: its files, an action for each run of a stage, and one for the run of the whole workflow.

Nothing in it comes from the clock or this machine: the same files and records always give the same graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from shlex import join
from typing import Any

from recurformer.crate import entities
from recurformer.crate.entities import Entity, file_key, reference, references
from recurformer.crate.runs import Run

PARAMETER = "#configfile"
SNAKEMAKE = "https://snakemake.github.io"


@dataclass(frozen=True)
class Study:
    """What a crate describes beside its runs: places relative to the project's folder, and the parsed CITATION.cff."""

    name: str
    workflow: PurePosixPath
    configs: Sequence[PurePosixPath]
    parts: Sequence[PurePosixPath]
    citation: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The run of its workflow."""
        return f"#the-{self.name}-study"

    @property
    def sources(self) -> list[PurePosixPath]:
        """The files that the workflow's main file includes."""
        return [place for place in self.parts if place.suffix == ".smk"]


class _Graph:
    """Entities by their ids. Whatever an entity refers to is added with it."""

    def __init__(self, runs: Sequence[Run], contents: Mapping[PurePosixPath, bytes]) -> None:
        self.runs = {run.record["run"]: run for run in runs}
        self.contents = contents
        self.entities: dict[str, Entity] = {}

    def add(self, entity: Entity) -> Entity:
        """A reference to the entity, which is added unless it is there."""
        return reference(self.entities.setdefault(entity["@id"], entity)["@id"])

    def written(self, place: PurePosixPath) -> Entity:
        if place in self.contents:
            return reference(file_key(place))
        return self.add(entities.left_out(place, "left out: only measurements, tables and figures are in this crate"))

    def read(self, path: str, maker: str | None) -> Entity:
        """An input: what its maker wrote. Of a maker that is not in the crate only the name is sure."""
        place = PurePosixPath(path)
        if maker is None:
            return self.written(place)
        if maker in self.runs:
            return self.written(next((made for made in self.runs[maker].outputs if made.name == place.name), place))
        return self.add(entities.left_out(place, "made by a run that is not in this crate", maker))

    def add_action(self, run: Run) -> Entity:
        """A run of a stage, with its record and benchmark as documents about it."""
        inputs = [self.read(file["path"], file["run"]) for file in run.record["inputs"]]
        action: Entity = {
            "@id": f"#{run.record['run']}",
            "@type": "CreateAction",
            "name": f"{run.stage}: {', '.join(map(str, run.outputs))}",
            "description": f"{join(run.record['argv'])}; {_cost(run.record)}",
            "instrument": self.add(entities.software(run.stage, run.record)),
            "startTime": run.start.isoformat(),
            "endTime": run.end.isoformat(),
            "object": references(item["@id"] for item in inputs),
            "result": [self.written(place) for place in run.outputs],
        }
        for place in (run.place, run.benchmark):
            if place in self.contents:
                self.entities[file_key(place)]["about"] = reference(action["@id"])
        return self.add(action)

    def unread(self) -> list[Entity]:
        """Files that runs wrote and no run read: what the workflow as a whole made."""
        actions = [entity for entity in self.entities.values() if entity["@type"] == "CreateAction"]
        used = [item for action in actions for item in action["object"]]
        return [item for action in actions for item in action["result"] if item not in used and item["@id"][0] != "#"]


def _cost(record: Mapping[str, Any]) -> str:
    host, accelerator = record["host"], record["accelerator"]
    return (
        f"{record['seconds']} s ({record['cpu_seconds']} processor s), {record['peak_memory_bytes'] / 1e6:,.0f} MB at "
        f"most, on {host['processor']}, {host['cores']} cores"
        + (f" and {accelerator['name']}" if accelerator else "")
        + f", {host['system']}"
    )


def _add_workflow(graph: _Graph, study: Study) -> None:
    """What the main file of the workflow is beside a file; its single parameter is the configuration."""
    software = [key for key, entity in graph.entities.items() if entity["@type"] == "SoftwareApplication"]
    versions = {run.record["versions"].get("snakemake") for run in graph.runs.values()} - {None}
    configs = references(map(file_key, study.configs))
    snakemake = {
        "@id": "https://w3id.org/workflowhub/workflow-ro-crate#snakemake",
        "@type": "ComputerLanguage",
        "name": "Snakemake",
        "identifier": SNAKEMAKE,
        "url": SNAKEMAKE,
        "version": ", ".join(sorted(versions)) or "unknown",
    }
    parameter = {
        "@id": PARAMETER,
        "@type": "FormalParameter",
        "additionalType": "File",
        "name": PARAMETER.removeprefix("#"),
        "description": "the study: sizes, seeds and models",
        "workExample": configs,
    }
    licence = f"https://spdx.org/licenses/{study.citation['license']}"
    graph.entities[file_key(study.workflow)] |= {
        "name": study.citation["title"],
        "version": study.citation["version"],
        "programmingLanguage": graph.add(snakemake),
        "conformsTo": graph.add(entities.WORKFLOW_PROFILE),
        "license": graph.add(entities.creative_work(licence, study.citation["license"], url=licence)),
        "creator": [graph.add(entities.person(author)) for author in study.citation["authors"]],
        "input": graph.add(parameter),
        "hasPart": references([*map(file_key, study.sources), *software]),
    }
    for config in configs:
        graph.entities[config["@id"]]["exampleOfWork"] = reference(PARAMETER)
    for place in study.sources:
        graph.entities[file_key(place)]["version"] = study.citation["version"]


def _add_whole_run(graph: _Graph, study: Study) -> Entity:
    runs = graph.runs.values()
    return graph.add(
        {
            "@id": study.key,
            "@type": "CreateAction",
            "name": f"the {study.name} study",
            "description": f"{len(runs)} runs of stages, each an action of its own",
            "instrument": reference(file_key(study.workflow)),
            "startTime": min(run.start for run in runs).isoformat(),
            "endTime": max(run.end for run in runs).isoformat(),
            "object": references(map(file_key, study.configs)),
            "result": graph.unread(),
        }
    )


def describe(study: Study, runs: Sequence[Run], contents: Mapping[PurePosixPath, bytes]) -> dict[str, Any]:
    """The metadata of a crate with these files, by their places relative to the project's folder."""
    graph = _Graph(runs, contents)
    kinds: dict[PurePosixPath, tuple[str, ...]] = {place: ("SoftwareSourceCode",) for place in study.sources}
    kinds[study.workflow] = ("SoftwareSourceCode", "ComputationalWorkflow")
    files = [graph.add(entities.file(place, contents[place], *kinds.get(place, ()))) for place in sorted(contents)]
    actions = [graph.add_action(run) for run in runs]
    whole = _add_whole_run(graph, study)
    _add_workflow(graph, study)
    cited = study.citation["references"][0]
    paper = {
        "@id": cited["url"],
        "@type": "ScholarlyArticle",
        "name": cited["title"],
        "author": [graph.add(entities.person(author)) for author in cited["authors"]],
        "datePublished": str(cited["year"]),
        "url": cited["url"],
        "identifier": [item["value"] for item in cited.get("identifiers", [])],
    }
    if "README.md" in graph.entities:
        graph.entities["README.md"]["about"] = reference(entities.ROOT)
    workflow = graph.entities[file_key(study.workflow)]
    root = {
        "@id": entities.ROOT,
        "@type": "Dataset",
        "name": f"{study.citation['title']}: the {study.name} study",
        "description": " ".join(study.citation["abstract"].split()),
        "license": workflow["license"],
        "author": workflow["creator"],
        "citation": graph.add(paper),
        "datePublished": graph.entities[study.key]["endTime"],
        "conformsTo": [graph.add(profile) for profile in entities.PROFILES],
        "mainEntity": reference(workflow["@id"]),
        "hasPart": files,
        "mentions": [whole, *actions],
    }
    descriptor = {
        "@id": entities.METADATA,
        "@type": "CreativeWork",
        "about": reference(entities.ROOT),
        "conformsTo": references([entities.RO_CRATE, entities.WORKFLOW_CRATE]),
    }
    described = [descriptor, root, *graph.entities.values()]
    return {"@context": entities.CONTEXT, "@graph": list(map(entities.compact, described))}
