"""The name and licence of a pretrained model, from its own files."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)


def base_facts(name: str, folder: str | Path) -> dict[str, Any]:
    """Facts from a model's card and configuration.

    Args:
        name: the user's: a folder or a name on the model hub.
        folder: of its files.

    Returns:
        name; hub: whether it is a name on the hub; revision: the commit there, or None; configured_name: of its
        configuration, or None; license: of its card or configuration, or None.
    """
    folder, on_hub = Path(folder), not Path(name).exists()
    config, card = _configuration(folder), _front_matter(folder)
    configured = config.get("_name_or_path")
    licence = card.get("license") or config.get("license")
    return {
        "name": name if on_hub else folder.resolve().name,
        "hub": on_hub,
        "revision": folder.name if on_hub else None,
        "configured_name": configured if isinstance(configured, str) and configured else None,
        "license": licence if isinstance(licence, str) else None,
    }


def _configuration(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _front_matter(folder: Path) -> dict[str, Any]:
    """The YAML at the beginning of a model card."""
    try:
        match = FRONT_MATTER.search((folder / "README.md").read_text(encoding="utf-8"))
        header = yaml.safe_load(match[1]) if match else {}
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return header if isinstance(header, dict) else {}
