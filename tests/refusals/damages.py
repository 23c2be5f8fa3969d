"""Ways to damage a good file, or to put a hostile one in its place: each gives a function of the folder."""

import json
import os
import pickle

import pandas as pd


class Payload:
    """A pickle that makes a file when it is read."""

    def __reduce__(self):
        return os.system, ("touch PWN",)


CODE = "from transformers import LlamaConfig\nopen('PWN', 'w')\n\n\nclass Hostile(LlamaConfig):\n    pass\n"


def cut(name, share=0.5):
    def damage(world):
        content = (world / name).read_bytes()
        (world / name).write_bytes(content[: int(len(content) * share)])

    return damage


def write(name, content=""):
    return lambda world: (world / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def remove(*names):
    return lambda world: [(world / name).unlink() for name in names]


def edit(name, **changes):
    def damage(world):
        settings = json.loads((world / name).read_text())
        (world / name).write_text(json.dumps(settings | changes))

    return damage


def heads(value):
    return edit("heads.json", heads=value)


def columns(name, drop):
    def damage(world):
        pd.read_parquet(world / name).drop(columns=drop).to_parquet(world / name)

    return damage


def frame(name, **values):
    def damage(world):
        rows = pd.DataFrame(values)
        rows.to_parquet(world / name) if name.endswith("parquet") else rows.to_csv(world / name, index=False)

    return damage


def weights_with_code(name):
    def damage(world):
        (world / "backbone/model.safetensors").unlink()
        (world / "backbone" / name).write_bytes(pickle.dumps(Payload()))

    return damage


def code_of_its_own(file, key):
    """The folder asks the library to run a module that lies in it."""

    def damage(world):
        (world / "backbone/hostile.py").write_text(CODE)
        edit(f"backbone/{file}", auto_map={key: "hostile.Hostile"}, model_type="hostile")(world)

    return damage


def both(*damages):
    return lambda world: [damage(world) for damage in damages]
