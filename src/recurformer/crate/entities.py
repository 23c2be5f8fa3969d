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


def creative_work(key: str, name: str, **more: Any) -> Entity:
    """What is no file, person or software: a profile, a licence, what was left out."""
    return {"@id": key, "@type": "CreativeWork", "name": name, **more}


PROFILES = [
    creative_work("https://w3id.org/ro/wfrun/process/0.5", "Process Run Crate", version="0.5"),
    creative_work("https://w3id.org/ro/wfrun/workflow/0.5", "Workflow Run Crate", version="0.5"),
    creative_work(WORKFLOW_CRATE, "Workflow RO-Crate", version="1.0"),
]
"""What the crate as a whole conforms to."""
WORKFLOW_PROFILE = creative_work(
    "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE",
    "Bioschemas ComputationalWorkflow",
    version="1.0",
)


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
    key = f"#{file_key(place)}" + (f"@{maker}" if maker else "")
    return creative_work(key, str(place), description=f"a {'file' if place.suffix else 'folder'}; {reason}")


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


def person(author: Mapping[str, str]) -> Entity:
    """An author of a citation file: a person, or an organization."""
    if "name" in author:
        return {"@id": f"#{quote(author['name'])}", "@type": "Organization", "name": author["name"]}
    names = [author.get(part) for part in ("given-names", "name-particle", "family-names")]
    name = " ".join(filter(None, names))
    return {"@id": f"#{quote(name)}", "@type": "Person", "name": name}
