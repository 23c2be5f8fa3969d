"""Make the library's own tests of models importable as `transformers_tests`: `unpack.py FOLDER`.

The folder holds the source distribution of the installed version, which `make test-hf` has downloaded. The wheel has
no tests, and the source has those of models in general only: not the tests of generate() or of exporters, whose
mixins are empty here, nor the list of common config keys, which is a short one of our own.
"""

import sys
import tarfile
from pathlib import Path

ABSENT = {
    "__init__.py": "",
    "exporters/__init__.py": "",
    "exporters/test_export.py": "class ExportTesterMixin: ...\n",
    "generation/__init__.py": "",
    "generation/test_utils.py": "class GenerationTesterMixin: ...\n",
    "utils/__init__.py": "",
    "utils/test_configuration_utils.py": "config_common_kwargs = "
    + repr({"return_dict": False, "output_hidden_states": True, "dtype": "float16", "architectures": ["Any"]}),
}


def unpack(folder: Path) -> None:
    """Write the package below `folder`, from the one source distribution in it.

    Raises:
        ValueError: there is none, or more than one.
    """
    sources = sorted(folder.glob("transformers-*.tar.gz"))
    if len(sources) != 1:
        raise ValueError(f"{folder} holds {len(sources)} of transformers-*.tar.gz: download exactly one there")
    package = folder / "transformers_tests"
    for name, text in ABSENT.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    with tarfile.open(sources[0]) as archive:
        for member in archive:
            place = Path(member.name)
            if place.parts[1:2] == ("tests",) and place.suffix == ".py" and len(place.parts) == 3:
                source = archive.extractfile(member)
                (package / place.name).write_bytes(source.read() if source else b"")


if __name__ == "__main__":
    unpack(Path(sys.argv[1]))
