"""A user's own texts: which documents there are, and which of them are held out."""

import pandas as pd
import pytest

from recurformer.corpora.documents import read_documents


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


def test_articles_without_a_split_are_split(tmp_path):
    pd.DataFrame({"text": list("abcde")}).to_parquet(tmp_path / "articles.parquet")
    found = read_documents([tmp_path / "articles.parquet"])
    assert len(found.held_out) == 1 and sorted(found.train + found.held_out) == list("abcde")


def test_the_end_of_a_lone_document_is_held_out(tmp_path):
    (tmp_path / "book.txt").write_text("chapters " * 80 + "epilogues " * 18)
    pd.DataFrame({"text": ["a lone text", None]}).to_parquet(tmp_path / "articles.parquet")
    (start,), (end,) = read_documents([tmp_path / "book.txt"])
    assert start == "chapters " * 80 and end == "epilogues " * 18
    assert read_documents([tmp_path / "articles.parquet"]) == (["a lone te"], ["xt"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "missing.txt: cannot be read"),
        ("picture.txt", b"\x89PNG\xff", "picture.txt: not UTF-8 text; give plain text or a .parquet file"),
        ("cut.parquet", b"PAR1", "cut.parquet: not a readable Parquet file"),
        ("other.parquet", {"body": ["a"]}, "other.parquet: column 'text' is missing"),
        ("numbers.parquet", {"text": [1]}, "numbers.parquet: column 'text' holds int64, not texts"),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, content, message):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content:
        pd.DataFrame(content).to_parquet(tmp_path / name)
    with pytest.raises(ValueError, match=message):
        read_documents([tmp_path / name])
