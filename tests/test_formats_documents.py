"""JSON lines and fastText lines: what is read from them, and every way they can be wrong."""

import gzip

import pytest
from helpers import refuses, write

from xmlpreck.data import formats
from xmlpreck.data.formats import Documents

XC = (
    '{"uid": "7", "title": "T", "content": "some text", "target_ind": [2, 0], "target_rel": [1.0, 1.0]}\n'
    '\n{"title": "U", "target_ind": []}\n{"content": "v", "target_ind": [1]}\n'
)


def test_the_repository_s_raw_text(tmp_path):
    (tmp_path / "trn.json.gz").write_bytes(gzip.compress(XC.encode()))
    texts = ["T some text", "U", "v"]
    assert formats.read_documents(tmp_path, "train")[:2] == (texts, [["2", "0"], [], ["1"]])
    titles = '{"uid": "a", "title": "one"}\n{"title": "two"}\n{"title": "caf\\u00e9"}\n'
    write(tmp_path / "lbl.json", titles)
    assert formats.read_documents(tmp_path, "train").labels == [["caf\u00e9", "one"], [], ["two"]]
    # Labels that share a title stay apart; one without a title is known by its number.
    write(tmp_path / "lbl.json", '{"title": "one"}\n{}\n{"title": "one"}\n')
    assert formats.read_documents(tmp_path, "train").labels == [["one #2", "one #0"], [], ["#1"]]
    assert formats.recognise(tmp_path) == "jsonl"


def test_free_form_json(tmp_path):
    text = '{"text": "a\\nb", "labels": ["x", 3], "more": {}}\r\n  \n{"text": "c"}'
    path = write(tmp_path / "docs", text)
    assert formats.read_documents(path, "train")[:2] == (["a\nb", "c"], [["x", "3"], []])


def test_fasttext_lines(tmp_path):
    lines = "__label__a __label__b some  text \n__label__c\n\nno label\t\n  __label__d\t __label__e x\n\n\r\n"
    documents = formats.read_documents(write(tmp_path / "docs", lines), "train")
    assert documents.texts == ["some  text ", "", "", "no label\t", "x"]
    assert documents.labels == [["a", "b"], ["c"], [], [], ["d", "e"]]
    assert documents.n_rows == 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', "is not JSON: "),
        ("[" * 100_000, "is not JSON: "),
        ('{"text": ' + "9" * 5000 + "}", "holds a whole number of thousands of digits"),
        ("[1]", "holds '[1]': each line must be a JSON object in braces"),
        ('{"text": 3}', "'text' is 3: it must be a string"),
        ('{"text": "a", "labels": 3}', "'labels' is 3: it must be a list"),
        ('{"text": "a", "labels": [1.5]}', "label 1.5 is not a name: labels are texts or whole numbers"),
        ('{"text": "a", "labels": [true]}', "label True is not a name"),
        ('{"text": "a", "labels": [""]}', "label '' is not a name"),
        ('{"text": "a", "labels": ["x", "y", "x"]}', "label 'x' appears twice: remove one"),
        ('{"text": "a", "labels": ["1", 1]}', "label '1' appears twice"),
        ('{"text": "\\ud800"}', "holds half of a surrogate pair"),
        ('{"txt": "a", "labels": []}', "has the fields 'txt', 'labels', but the text is read from 'text'"),
        ("{}", "has the fields nothing, but the text is read from 'text'"),
        ('{"title": null}', "'title' is null: it must be a string"),
        ('{"title": "a", "target_ind": 3}', "'target_ind' is 3: it must be a list"),
        ('{"title": "a", "target_ind": ["3"]}', 'target_ind holds "3": ids are whole numbers from 0'),
        ('{"title": "a", "target_ind": [-1]}', "target_ind holds -1, which is out of range: there are 2 labels"),
        ('{"title": "a", "target_ind": [0, 2]}', "target_ind holds 2, which is out of range: there are 2 labels"),
        ('{"title": "a", "target_ind": [1, 1]}', "label 'two' appears twice"),
        ('{"text": "\xff"}'.encode("latin-1"), "byte 11 of the line is not UTF-8: save the file as UTF-8"),
    ],
)
def test_bad_json_names_file_and_line(tmp_path, line, message):
    write(tmp_path / "lbl.json", '{"title": "one"}\n{"title": "two"}\n')
    path = tmp_path / "train.json"
    content = line if isinstance(line, bytes) else line.encode()
    first = b'{"title": "fine"}' if b"title" in content else b'{"text": "fine"}'
    path.write_bytes(first + b"\n\n" + content + b"\n")
    with refuses(f"{path}:3: {message}"):
        formats.read_documents(path, "train", "jsonl")


def test_bad_titles(tmp_path):
    path = write(tmp_path / "trn.json", XC)
    for text, message in (
        ('{"title": "a"}\n{"title": 3}\n', "lbl.json:2: 'title' is 3: it must be a string"),
        ("x\n", "lbl.json:1: is not JSON"),
        ('{"title": "#1"}\n{}\n', "lbl.json: two labels are called '#1': rename one"),
    ):
        write(tmp_path / "lbl.json", text)
        with refuses(message):
            formats.read_documents(path, "train")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("some __label__x text", "'__label__x' is inside the text: put the labels before it"),
        ("__label__a some text __label__b", "'__label__b' is inside the text"),
        ("__label__ text", "'__label__' is inside the text"),
        ("__label__a __label__a text", "label 'a' appears twice: remove one"),
        (b"__label__a \xff", "byte 12 of the line is not UTF-8"),
    ],
)
def test_bad_fasttext_names_file_and_line(tmp_path, line, message):
    path = tmp_path / "train.ft"
    path.write_bytes(b"__label__x fine\n\n" + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with refuses(f"{path}:3: {message}"):
        formats.read_documents(path, "train")


@pytest.mark.parametrize(
    ("text", "labels", "message"),
    [
        ("a\nb", [], "the text holds a line break, which fastText cannot: write jsonl"),
        ("a", ["x y"], "label 'x y' is empty or holds white space, which fastText cannot: write jsonl"),
        ("a", [""], "label '' is empty or holds white space"),
        ("a __label__b", ["x"], "__label__b' is inside the text"),
        ("__label__b", ["x"], "the text holds __label__: write jsonl"),
        ("\ud800", ["x"], "holds half of a surrogate pair: no file can hold it"),
    ],
)
def test_what_fasttext_cannot_hold(tmp_path, text, labels, message):
    chunks = [Documents(["fine"], [["x"]]), Documents([text], [labels])]
    with refuses(f"{message}"):
        formats.write_split(tmp_path / "train.ft", "train", iter(chunks), "fasttext")
    assert not list(tmp_path.iterdir())


def test_documents_that_cannot_be_read(tmp_path):
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 500)[:-12])
    with refuses("cut.jsonl.gz: cannot be read: "):
        list(formats.document_chunks(tmp_path / "cut.jsonl.gz", "train", "jsonl", 10))
