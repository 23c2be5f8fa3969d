"""The name and licence of a pretrained model, as far as its own files say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import metadata_load


def base_facts(name: str, folder: str | Path) -> dict[str, Any]:
    """Facts from a model's card and configuration.

    Args:
        name: as the user gave it: a folder or a name on the model hub.
        folder: of its files.

    Returns:
        name; hub: whether it is a name on the hub; revision: the commit there, or None; configured_name: of its
        configuration, or None; license: of its card or configuration, or None.
    """
    folder, on_hub = Path(folder), not Path(name).exists()
    config = _read(folder / "config.json", lambda file: json.loads(file.read_text(encoding="utf-8")))
    card = _read(folder / "README.md", metadata_load)
    configured = config.get("_name_or_path")
    licence = card.get("license") or config.get("license")
    return {
        "name": name if on_hub else folder.resolve().name,
        "hub": on_hub,
        "revision": folder.name if on_hub else None,
        "configured_name": configured if isinstance(configured, str) and configured else None,
        "license": licence if isinstance(licence, str) else None,
    }


def _read(file: Path, load: Callable[[Path], Any]) -> dict[str, Any]:
    """What a file says; nothing where it is missing or damaged."""
    try:
        found = load(file)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}
