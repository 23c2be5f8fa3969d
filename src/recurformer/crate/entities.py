"""Single entities of a crate, in the words of schema.org, RO-Crate 1.1 and its Workflow Run profiles 0.5."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

Entity = dict[str, Any]

CONTEXT = ["https://w3id.org/ro/crate/1.1/context", "https://w3id.org/ro/terms/workflow-run/context"]
METADATA = "ro-crate-metadata.json"
ROOT = "./"
RO_CRATE = "https://w3id.org/ro/crate/1.1"
WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    WORKFLOW_CRATE: ("Workflow RO-Crate", "1.0"),
}
FORMATS = {
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".parquet": "application/vnd.apache.parquet",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".md": "text/markdown",
    ".tex": "application/x-tex",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".html": "text/html",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".cff": "application/yaml",
    ".toml": "application/toml",
}


def reference(key: str) -> Entity:
    """How one entity names another."""
    return {"@id": key}


def references(keys: Iterable[str]) -> list[Entity]:
    """Each once, in their order."""
    return [reference(key) for key in dict.fromkeys(keys)]


def compact(entity: Entity) -> Entity:
    """One value instead of a list of one, and no property without a value, as RO-Crate recommends."""
    single = {
        name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in entity.items()
    }
    return {name: value for name, value in single.items() if value != []}


def file_key(place: PurePosixPath) -> str:
    """The id of a file that the crate contains."""
    return quote(str(place))


def file(place: PurePosixPath, content: bytes, *types: str) -> Entity:
    """A file that the crate contains; contentSize in bytes."""
    return {
        "@id": file_key(place),
        "@type": ["File", *types] if types else "File",
        "name": str(place),
        "encodingFormat": FORMATS.get(place.suffix, "text/plain"),
        "contentSize": str(len(content)),
        "sha256": sha256(content).hexdigest(),
    }


def left_out(place: PurePosixPath, reason: str, maker: str | None = None) -> Entity:
    """A file or folder that a run read or wrote and that the crate does not contain."""
    kind = "file" if place.suffix else "folder"
    key = f"#{file_key(place)}" + (f"@{maker}" if maker else "")
    return {"@id": key, "@type": "CreativeWork", "name": str(place), "description": f"a {kind}; {reason}"}


def software(name: str, record: Mapping[str, Any]) -> Entity:
    """What a run called. Its version, in the form of PEP 440, names the commit and the working tree's difference."""
    commit, difference = record["git"]["commit"], record["git"]["difference"]
    version = record["versions"].get("recurformer", "unknown")
    if commit:
        version += f"+g{commit[:12]}" + (f".d{difference[:8]}" if difference else "")
    return {
        "@id": f"#{name.replace(' ', '-')}-{version}",
        "@type": "SoftwareApplication",
        "name": name,
        "softwareVersion": version,
        "description": f"commit {commit or 'unknown'}",
    }


def parameter(key: str, examples: list[Entity], description: str) -> Entity:
    """Files that the workflow is given."""
    return {
        "@id": key,
        "@type": "FormalParameter",
        "additionalType": "File",
        "name": key.removeprefix("#"),
        "description": description,
        "workExample": examples,
    }


def snakemake(versions: Iterable[str]) -> Entity:
    """The workflow's language, with the versions that runs name."""
    address = "https://snakemake.github.io"
    return {
        "@id": "https://w3id.org/workflowhub/workflow-ro-crate#snakemake",
        "@type": "ComputerLanguage",
        "name": "Snakemake",
        "identifier": address,
        "url": address,
        "version": ", ".join(sorted(set(versions))) or "unknown",
    }


def bioschemas_workflow() -> Entity:
    """What a workflow's description conforms to."""
    address = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
    return {"@id": address, "@type": "CreativeWork", "name": "Bioschemas ComputationalWorkflow", "version": "1.0"}


def profiles() -> list[Entity]:
    """What the crate as a whole conforms to."""
    return [
        {"@id": address, "@type": "CreativeWork", "name": name, "version": version}
        for address, (name, version) in PROFILES.items()
    ]


def descriptor() -> Entity:
    """The metadata file itself."""
    return {
        "@id": METADATA,
        "@type": "CreativeWork",
        "about": reference(ROOT),
        "conformsTo": references([RO_CRATE, WORKFLOW_CRATE]),
    }


def person(author: Mapping[str, str]) -> Entity:
    """An author of a citation file: a person, or an organization."""
    if "name" in author:
        return {"@id": f"#{quote(author['name'])}", "@type": "Organization", "name": author["name"]}
    names = [author.get(part) for part in ("given-names", "name-particle", "family-names")]
    name = " ".join(filter(None, names))
    return {"@id": f"#{quote(name)}", "@type": "Person", "name": name}


def article(cited: Mapping[str, Any]) -> list[Entity]:
    """A cited article and its authors."""
    authors = [person(author) for author in cited["authors"]]
    work = {
        "@id": cited["url"],
        "@type": "ScholarlyArticle",
        "name": cited["title"],
        "author": references(author["@id"] for author in authors),
        "datePublished": str(cited["year"]),
        "url": cited["url"],
        "identifier": [item["value"] for item in cited.get("identifiers", [])],
    }
    return [work, *authors]


def licence(identifier: str) -> Entity:
    """A licence by its SPDX identifier."""
    address = f"https://spdx.org/licenses/{identifier}"
    return {"@id": address, "@type": "CreativeWork", "name": identifier, "url": address}
