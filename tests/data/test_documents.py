"""A user's own texts: which documents there are, and which of them are held out."""

import datasets
import pandas as pd
import pytest
from datasets import Dataset

from recurformer.data import documents
from recurformer.data.documents import read_documents
from recurformer.data.fetch import ResourceError


def texts(folder, count):
    for number in range(count):
        (folder / f"{number}.txt").write_text(f"document {number}")
    return sorted(folder.glob("*.txt"))


def test_each_text_file_is_one_document_and_the_seed_splits_them(tmp_path):
    files = texts(tmp_path, 10)
    first = read_documents(files, seed=0)
    assert len(first.held_out) == 2 and len(first.train) == 8
    assert sorted(first.train + first.held_out) == sorted(file.read_text() for file in files)
    assert read_documents(files, seed=0) == first
    assert any(read_documents(files, seed=seed) != first for seed in range(1, 4))


def test_a_column_split_is_obeyed_and_no_document_is_on_both_sides(tmp_path):
    rows = [("a", "train"), ("b", "validation"), ("a", "validation"), ("c", "train"), (" ", "train")]
    pd.DataFrame(rows, columns=["text", "split"]).to_parquet(tmp_path / "articles.parquet")
    assert read_documents([tmp_path / "articles.parquet"]) == (["a", "c"], ["b"])


def test_the_end_of_a_lone_document_is_held_out(tmp_path):
    (tmp_path / "book.txt").write_text("chapters " * 80 + "epilogues " * 18)
    pd.DataFrame({"text": ["a lone text", None]}).to_parquet(tmp_path / "articles.parquet")
    (start,), (end,) = read_documents([tmp_path / "book.txt"])
    assert start == "chapters " * 80 and end == "epilogues " * 18
    assert read_documents([tmp_path / "articles.parquet"]) == (["a lone te"], ["xt"])


def test_a_folder_gives_its_text_files(tmp_path):
    texts(tmp_path, 3)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/notes.md").write_text("# notes")
    (tmp_path / "inner/model.bin").write_bytes(b"\xff\xfe")
    train, held_out = read_documents([tmp_path])
    assert sorted(train + held_out) == ["# notes", *(f"document {number}" for number in range(3))]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: a folder without any \.txt or \.md file"):
        read_documents([tmp_path / "empty"])


def test_tables_of_the_library_are_read(tmp_path):
    rows = Dataset.from_dict({"text": ["007", "b", "c"], "split": ["train", "train", "test"]})
    rows.to_parquet(tmp_path / "rows.parquet")
    rows.to_json(tmp_path / "rows.jsonl")
    for name in ("rows.parquet", "rows.jsonl"):
        assert read_documents([tmp_path / name]) == (["007", "b"], ["c"])


def test_files_are_read_as_other_programs_write_them(tmp_path):
    """A byte-order mark is no text; capitals in a suffix; a file without one; numbers that no integer type holds."""
    (tmp_path / "A.TXT").write_text("a", encoding="utf-8-sig")
    (tmp_path / "b").write_text("b")
    (tmp_path / "c.jsonl").write_text(
        '{"text": "c", "id": 1234567890123456789012}\n\n{"text": "d"}\n', encoding="utf-8-sig"
    )
    train, held_out = read_documents([tmp_path / "A.TXT", tmp_path / "b", tmp_path / "c.jsonl"])
    assert sorted(train + held_out) == list("abcd")
    assert read_documents([tmp_path]).train == ["a"]  # of a folder, only files with the suffix of a text


def test_the_first_documents_of_a_data_set_are_read(tmp_path, monkeypatch):
    """The library itself, which finds the rows of the data set in a file here."""
    Dataset.from_dict({"text": list("abcdefg")}).to_parquet(tmp_path / "rows.parquet")
    asked, load = [], datasets.load_dataset

    def load_here(*names, **options):
        asked.append(names)
        return load("parquet", data_files=str(tmp_path / "rows.parquet"), **options)

    monkeypatch.setattr(datasets, "load_dataset", load_here)
    monkeypatch.setattr(documents, "MOST_OF_HUB", 5)
    train, held_out = read_documents(["owner/name:small"])
    assert sorted(train + held_out) == list("abcde")
    assert asked == [("owner/name", "small")]
    Dataset.from_dict({"body": ["a"]}).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ResourceError, match="owner/name: the data set has no texts in a column 'text'"):
        read_documents(["owner/name"])


def test_a_data_set_that_cannot_be_fetched_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    said = "owner/name: no such file or folder; cannot read the data set owner/name of the hub: "
    with pytest.raises(ResourceError, match=said):
        read_documents(["owner/name"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "missing.txt: cannot be read"),
        ("data/missing", None, "data/missing: cannot be read"),
        ("empty.txt", b" \n", "empty.txt: no text in it; give .txt"),
        ("picture.txt", b"\x89PNG\xff", "picture.txt: not UTF-8 text; give .txt or .md files, folders of them"),
        ("a.txt", "a text".encode("utf-16-le"), "a.txt: not UTF-8 text, with a NUL in line 1"),
        ("missing.parquet", None, "missing.parquet: no such file"),
        ("cut.parquet", b"PAR1", "cut.parquet: not a readable Parquet file"),
        ("other.parquet", {"body": ["a"]}, "other.parquet: column 'text' is missing; there are: body"),
        ("numbers.parquet", {"text": [1]}, "numbers.parquet: column 'text' holds 1 in row 1, not a text"),
        ("other.jsonl", b'{"body": "a"}', "other.jsonl: column 'text' is missing"),
        ("list.jsonl", b'\n["a"]', "list.jsonl: column 'text' is missing"),
        ("empty.jsonl", b"\n\n", "empty.jsonl: column 'text' is missing"),
        ("cut.jsonl", b'{"text": "a"}\n{"text": "b"', "cut.jsonl: not a readable JSONL file .line 2: "),
        ("deep.jsonl", b'{"text": ' + b"[" * 100_000, "deep.jsonl: not a readable JSONL file .line 1: "),
        ("half.jsonl", b'{"text": "a"}\n{"text": "\\ud83d"}', r"half.jsonl: column 'text' holds '\\ud83d' in row 2"),
        ("nul.jsonl", b'{"text": "a"}\n{"text": "b\\u0000"}', "nul.jsonl: column 'text' holds a NUL in row 2"),
        ("table.csv", b"text\na\n", "table.csv: a .csv file is not read; .* .parquet or .jsonl files with a column"),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, content, message):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content:
        pd.DataFrame(content).to_parquet(tmp_path / name)
    with pytest.raises(ValueError, match=message):
        read_documents([tmp_path / name])
