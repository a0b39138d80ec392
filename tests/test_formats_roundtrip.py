"""Any format to any other and back: every value and id stays, whatever the chunks and the packing."""

import gzip
import itertools
import os

import numpy as np
import pytest
from helpers import PROPERTY, assert_same_dataset, datasets, refuses, sparse
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.sparse import vstack

from xmlpreck.data import formats
from xmlpreck.data.formats import Dataset, Documents
from xmlpreck.files.contents import line_blocks, numbered_lines

NUMERIC = formats.NUMERIC_FORMATS
CHUNKS = st.sampled_from([1, 2, 7, 10**9])


def cut(dataset, n_rows):
    """Chunks of a data set as `write_split` takes them."""
    for start in range(0, max(1, dataset.rows.shape[0]), n_rows):
        part = slice(start, start + n_rows)
        yield dataset._replace(rows=dataset.rows[part], labels=dataset.labels[part])


def sizes_of(dataset):
    return {"n_features": dataset.rows.shape[1], "n_labels": dataset.labels.shape[1]}


def join(chunks):
    """Chunks put together by scipy and not by us."""
    rows, labels = zip(*((chunk.rows, chunk.labels) for chunk in chunks), strict=True)
    return Dataset(*(vstack(part, format="csr", dtype=np.float32) for part in (rows, labels)))


def bits(dataset):
    return dataset.rows.data.view(np.uint32).tolist()


def place(folder, format, name):
    return folder / f"{name}-{format}"


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("format", NUMERIC)
@PROPERTY
@given(dataset=datasets(), written=CHUNKS, read=CHUNKS, split=st.sampled_from(["train", "test"]))
@example(Dataset(sparse({}, (3, 2)), sparse({}, (3, 2))), 1, 2, "train")
@example(Dataset(sparse({0: {0: -0.0}}, (1, 2)), sparse({}, (1, 2))), 1, 1, "test")
def test_numeric_round_trip(tmp_path, format, compress, dataset, written, read, split):
    folder = tmp_path / "data"
    for file in folder.glob("*"):
        file.unlink()
    formats.write_split(folder, split, cut(dataset, written), format, compress)
    given_sizes = sizes_of(dataset) if format == "libsvm" else {}
    whole = formats.read_split(folder, split, format, **given_sizes)
    assert_same_dataset(whole, dataset)
    assert bits(whole) == bits(dataset)
    chunks = list(formats.read_chunks(folder, split, format, read, **given_sizes))
    assert [chunk.rows.shape[0] for chunk in chunks[:-1]] == [read] * (len(chunks) - 1)
    assert {chunk.rows.shape[1:] + chunk.labels.shape[1:] for chunk in chunks} == {tuple(sizes_of(dataset).values())}
    assert_same_dataset(join(chunks), dataset)
    assert formats.sizes(folder, split, format, **given_sizes) == (dataset.rows.shape[0], *sizes_of(dataset).values())
    if format != "libsvm" or dataset.rows.nnz:  # else there is nothing to tell it by
        assert formats.recognise(folder) == format


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(NUMERIC, 2)))
@settings(PROPERTY, max_examples=15)  # twenty pairs of them
@given(dataset=datasets(), chunk=CHUNKS)
def test_from_every_format_to_every_other(tmp_path, source, target, dataset, chunk):
    """Two steps, each in chunks: what the second reads is what the first was given."""
    first, second = tmp_path / "first", tmp_path / "second"
    formats.write_split(first, "train", [dataset], source)
    chunks = formats.read_chunks(first, "train", source, chunk, **(sizes_of(dataset) if source == "libsvm" else {}))
    formats.write_split(second, "train", chunks, target)
    back = formats.read_split(second, "train", target, **(sizes_of(dataset) if target == "libsvm" else {}))
    assert_same_dataset(back, dataset)
    assert bits(back) == bits(dataset)


@pytest.mark.parametrize("format", NUMERIC)
def test_names_travel_with_a_folder(tmp_path, format):
    dataset = Dataset(sparse({0: {2: 0.1}}, (2, 3)), sparse({1: {1: 1}}, (2, 2)), ["a", ""], ["x", "y", "caf\u00e9"])
    formats.write_split(tmp_path / "d", "train", cut(dataset, 1), format)
    for data in (
        formats.read_split(tmp_path / "d", "train"),
        *formats.read_chunks(tmp_path / "d", "train", None, 1),
    ):
        assert (data.label_names, data.feature_names) == (dataset.label_names, dataset.feature_names)
    with refuses("name 0, 'a\\nb', holds a line break"):
        formats.write_split(tmp_path / "e", "train", [dataset._replace(label_names=["a\nb", "c"])], format)


@pytest.mark.parametrize("format", NUMERIC)
def test_both_splits_in_one_folder(tmp_path, format):
    train = Dataset(sparse({0: {1: 1.5}, 2: {0: 3}}, (3, 5)), sparse({0: {3: 1}}, (3, 4)))
    test = Dataset(sparse({1: {4: 2}}, (2, 5)), sparse({0: {0: 1, 1: 1}}, (2, 4)))
    for order in (("train", "test"), ("test", "train", "test")):
        folder = tmp_path / "-".join(order)
        for split in order:
            formats.write_split(folder, split, [train if split == "train" else test], format)
        # LIBSVM has no sizes: they are the largest ids of both files together.
        assert_same_dataset(formats.read_split(folder, "train"), train)
        assert_same_dataset(formats.read_split(folder, "test"), test)
        assert_same_dataset(next(formats.read_chunks(folder, "test")), test)
        assert formats.has_split(folder, "train")
        assert formats.recognise(folder) == format


@pytest.mark.parametrize("format", NUMERIC)
def test_the_same_data_give_the_same_bytes(tmp_path, format):
    dataset = Dataset(sparse({0: {1: 0.5}}, (2, 2)), sparse({0: {0: 1}}, (2, 1)))
    contents = []
    for name, chunk in (("a", 1), ("b", 9)):
        folder = tmp_path / name / "data"
        formats.write_split(folder, "train", cut(dataset, chunk), format, compress=True)
        contents.append({file: (folder / file).read_bytes() for file in os.listdir(folder)})
    assert contents[0] == contents[1]


def test_chunks_of_different_widths_are_refused(tmp_path):
    chunks = [Dataset(sparse({}, (1, n)), sparse({}, (1, 2))) for n in (3, 4)]
    for format in NUMERIC:
        with refuses("all chunks must have the same width, not 3 features, 2 labels and 4 features, 2 labels"):
            formats.write_split(tmp_path / format, "train", iter(chunks), format)
        assert os.listdir(tmp_path / format) == []


@pytest.mark.parametrize("format", formats.NUMERIC_FORMATS + formats.WRITTEN_DOCUMENTS)
def test_a_failing_source_leaves_nothing(tmp_path, format):
    def chunks():
        if format in formats.DOCUMENT_FORMATS:
            yield Documents(["a"], [["b"]])
        else:
            yield Dataset(sparse({}, (1, 3)), sparse({}, (1, 2)))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        formats.write_split(tmp_path / "d", "train", chunks(), format)
    assert os.listdir(tmp_path / "d") == []


@pytest.mark.parametrize("format", formats.NUMERIC_FORMATS + formats.WRITTEN_DOCUMENTS)
def test_the_wrong_kind_is_refused(tmp_path, format):
    texts, rows = Documents(["a"], [["b"]]), Dataset(sparse({0: {0: 1}}, (1, 3)), sparse({0: {0: 1}}, (1, 2)))
    is_text = format in formats.DOCUMENT_FORMATS
    right, wrong = (texts, rows) if is_text else (rows, texts)
    with refuses(f"{format} takes {type(right).__name__}, not {type(wrong).__name__}"):
        formats.write_split(tmp_path, "train", [wrong], format)
    formats.write_split(tmp_path, "train", [right], format)
    if is_text:
        for read in (formats.read_split, formats.read_chunks, formats.sizes):
            with refuses(f"holds texts ({format}), not features: use read_documents or document_chunks"):
                read(tmp_path, "train")
    else:
        for read in (formats.read_documents, formats.document_chunks):
            with refuses(f"holds features ({format}), not texts: use read_split or read_chunks"):
                read(tmp_path, "train")
    with refuses("rows_per_chunk must be at least 1, but is 0"):
        (formats.document_chunks if is_text else formats.read_chunks)(tmp_path, "train", None, 0)


# --- documents

LETTERS = st.characters(codec="utf-8")
TEXTS = st.text(LETTERS, max_size=12)
PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12).filter(
    lambda text: "__label__" not in text
)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=5)


def documents(texts, names):
    return st.lists(st.tuples(texts, st.lists(names, unique=True, max_size=3)), max_size=9).map(
        lambda pairs: Documents([text for text, _ in pairs], [labels for _, labels in pairs])
    )


def cut_documents(drawn, n):
    for start in range(0, max(1, drawn.n_rows), n):
        yield Documents(drawn.texts[start : start + n], drawn.labels[start : start + n])


def check_documents(folder, format, drawn, written, read, compress):
    formats.write_split(folder, "train", cut_documents(drawn, written), format, compress)
    assert formats.read_documents(folder, "train", format) == drawn
    chunks = list(formats.document_chunks(folder, "train", format, read))
    assert [chunk.n_rows for chunk in chunks[:-1]] == [read] * (len(chunks) - 1)
    assert [text for chunk in chunks for text in chunk.texts] == drawn.texts
    assert [labels for chunk in chunks for labels in chunk.labels] == drawn.labels
    for file in folder.glob("*"):
        file.unlink()


@PROPERTY
@given(drawn=documents(TEXTS, st.text(LETTERS, min_size=1, max_size=5)), written=CHUNKS, read=CHUNKS, gz=st.booleans())
def test_jsonl_round_trip(tmp_path, drawn, written, read, gz):
    check_documents(tmp_path / "c", "jsonl", drawn, written, read, gz)


@PROPERTY
@given(drawn=documents(PLAIN, NAMES), written=CHUNKS, read=CHUNKS, gz=st.booleans())
@example(Documents(["", "  ", "", " x "], [[], [], ["a"], []]), 1, 1, False)
@example(Documents(["", ""], [["a", "b"], []]), 2, 1, False)
def test_fasttext_round_trip(tmp_path, drawn, written, read, gz):
    check_documents(tmp_path / "c", "fasttext", drawn, written, read, gz)
    formats.write_split(tmp_path / "a", "test", [drawn], "jsonl")
    formats.write_split(tmp_path / "b", "test", formats.document_chunks(tmp_path / "a", "test", "jsonl", 2), "fasttext")
    assert formats.read_documents(tmp_path / "b", "test", "fasttext") == drawn


# --- blocks of lines


@PROPERTY
@given(
    text=st.text(st.sampled_from("ab \r\n"), max_size=30).map(str.encode),
    block=st.sampled_from([1, 2, 3, 5, 100]),
    gz=st.booleans(),
)
def test_blocks_end_where_lines_end(tmp_path, text, block, gz):
    path = tmp_path / ("lines.gz" if gz else "lines")
    path.write_bytes(gzip.compress(text) if gz else text)
    blocks = [part.tobytes() for part in line_blocks(path, block)]
    assert b"".join(blocks) == text
    assert all(part.endswith(b"\n") for part in blocks[:-1])
    # Only the last may be nothing but ends of lines: these may or may not be rows.
    assert all(part.strip(b"\r\n") for part in blocks[:-1])
    lines = [line.removesuffix(b"\r").decode() for line in text.split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    assert list(numbered_lines(path)) == list(enumerate(lines, 1))
