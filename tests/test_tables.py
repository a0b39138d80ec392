"""Tables of texts: files as spreadsheets, Annif and programs write them, tables in memory, and what is said of them."""

import csv
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import PROPERTY, refuses
from hypothesis import example, given
from hypothesis import strategies as st

import xmlpreck
from xmlpreck.cli import main
from xmlpreck.config import ConfigError, InputError, TextConfig
from xmlpreck.data import formats
from xmlpreck.data.corpus import Corpus, find_corpus, learn, vectorize
from xmlpreck.data.formats import Columns, Documents
from xmlpreck.data.formats.column_choice import ANY, Chooser
from xmlpreck.data.formats.delimited import DelimitedTable
from xmlpreck.data.formats.recognition import find_source
from xmlpreck.data.location import DataLocation
from xmlpreck.data.text import fit_text
from xmlpreck.model import Model


def read(path, columns=ANY, format=None):
    """All documents of a file."""
    chunks = list(formats.document_chunks(path, "train", format, columns=columns))
    assert len(chunks) == 1
    return chunks[0]


def written(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


# --- dialects

WRITERS = ("csv", "pandas", "polars")
CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@st.composite
def dialects(draw):
    return {
        "delimiter": draw(st.sampled_from(",;\t|")),
        "quoting": draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])),
        "lineterminator": draw(st.sampled_from(["\n", "\r\n"])),
        "encoding": draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"])),
    }


def write_with(writer, path, rows, dialect):
    header = ["id", "text", "labels"]
    encoding = dialect["encoding"]
    if writer == "csv":
        with open(path, "w", newline="", encoding=encoding) as file:
            out = csv.writer(file, **{key: value for key, value in dialect.items() if key != "encoding"})
            out.writerows([header, *rows])
    elif writer == "pandas":
        pandas = pytest.importorskip("pandas")
        pandas.DataFrame(rows, columns=header).to_csv(
            path, index=False, sep=dialect["delimiter"], quoting=dialect["quoting"],
            lineterminator=dialect["lineterminator"], encoding=encoding,
        )  # fmt: skip
    else:
        polars = pytest.importorskip("polars")
        frame = polars.DataFrame(rows, schema=dict.fromkeys(header, polars.String), orient="row")
        text = frame.write_csv(separator=dialect["delimiter"], line_terminator=dialect["lineterminator"])
        path.write_bytes(text.encode(encoding))


@pytest.mark.parametrize("writer", WRITERS)
@PROPERTY
@given(texts=st.lists(CELLS, min_size=1, max_size=6), dialect=dialects())
@example(['a "b"\r\nc;d,e\tf|g', "", '"', "\r", " x "], {"delimiter": ";", "quoting": csv.QUOTE_MINIMAL,
                                                       "lineterminator": "\r\n", "encoding": "utf-16"})  # fmt: skip
def test_what_others_write_is_read_back(tmp_path, writer, texts, dialect):
    """Whatever the delimiter, quotes, ends of lines and encoding; only what no byte order mark tells is said."""
    if dialect["lineterminator"] == "\n" and dialect["quoting"] == csv.QUOTE_MINIMAL:
        # Before Python 3.13 such a writer does not quote a lone CR, which its own reader then takes for the row's end.
        texts = [text.replace("\r", "") for text in texts]
    rows = [[f"n{i}", text, f"x{i % 3};y"] for i, text in enumerate(texts)]
    path = tmp_path / "t.csv"
    write_with(writer, path, rows, dialect)
    found = read(path)
    assert found == Documents(texts, [[f"x{i % 3}", "y"] for i in range(len(texts))], [row[0] for row in rows])
    assert DelimitedTable(path).dialect.delimiter == dialect["delimiter"]


@PROPERTY
@given(
    texts=st.lists(st.text("aé €ß\"',;\n", max_size=9), min_size=1, max_size=5),
    encoding=st.sampled_from(["cp1252", "iso-8859-15", "cp1250"]),
)
def test_an_encoding_that_is_said_is_converted(tmp_path, texts, encoding):
    path = tmp_path / "t.csv"
    write_with("csv", path, [[i, text, "x"] for i, text in enumerate(texts)], {"delimiter": ";", "encoding": encoding})
    assert read(path, Columns(encoding=encoding)).texts == texts


def test_spreadsheets(tmp_path):
    """Excel's CSV: byte order mark, semicolons, CRLF, rows filled up; its text is UTF-16; old Macs end lines by CR."""
    text = 'Titel;Schlagworte;;\r\nÜbergröße "XL";Mode;;\r\n"a;b\r\nc";Mode;;\r\n'
    for encoding in ("utf-8-sig", "utf-16"):
        found = read(written(tmp_path / "t.csv", text, encoding))
        assert found[:2] == (['Übergröße "XL"', "a;b\r\nc"], [["Mode"], ["Mode"]])
    assert read(tmp_path / "t.csv", Columns(encoding="utf-16-le")) == found  # the mark is no letter of a name
    assert read(written(tmp_path / "t.csv", "text,tag\ra,x\rb,y\r")).labels == [["x"], ["y"]]
    (tmp_path / "t.csv").write_bytes(b"text,tag\na\x81,x\n")
    with refuses("t.csv:2: byte 2 of the line (0x81) is not cp1252: if 'a\\x81,x' is right, say --encoding latin-1"):
        read(tmp_path / "t.csv", Columns(encoding="cp1252"))


def test_packed_and_unnamed_tables(tmp_path):
    import gzip

    (tmp_path / "train.csv.gz").write_bytes(gzip.compress(b"text,labels\na,x\n"))
    assert read(tmp_path)[:2] == (["a"], [["x"]])
    path = written(tmp_path / "no-suffix", "id|title|abstract|tags\n1|a|b|x\n")
    assert formats.recognise(path) == "csv"
    assert read(path) == (["a b"], [["x"]], ["1"])


BAD = {
    "empty": ("", "t.csv: unknown format: it begins with nothing: the file is empty"),
    "short": (
        "text,labels\na,x\nb\n",
        "t.csv:3: has 1 fields with commas between them, but the first row has 2",
    ),
    "long": ("text,labels\n\na,x,y\n", "t.csv:3: has 3 fields with commas"),
    "open": ('text,labels\na,x\n"b,y\nc,z\n', "t.csv:3: a quote opens a field here and nothing closes it"),
    "behind": (
        'text,labels\n"a\nb",x\n"c"d,y\n',
        "t.csv:4: a field has letters behind its closing quote: write",
    ),
    "twice": (
        "text,text,labels\na,b,x\n",
        "'text', 'text' may all be texts: name the column of texts by --text-columns",
    ),
    "no text": ("year,price\n2001,3\n", "t.csv: no column has a name that tells texts: name the column of texts by"),
    "first row": ("year,price\n2001,3\n", "the first row is 'year': '2001', 'price': '3'"),
    "two": ("one,two\na b c d e,f g h i j\n", "'one', 'two' may all be texts"),
    "delimiter": ("a,b;c\nd,e;f\n", "t.csv: its columns may have commas or semicolons between them: say which by"),
    "latin": ("text,labels\ncafé au lait,x\n", "t.csv:2: byte 4 of the line (0xe9) is not UTF-8: if 'café au lait,x'"),
    "utf-16": (
        "text,labels\na,x\n",
        "t.csv: is not UTF-8: every second byte is 0, as in UTF-16: say",
    ),
    "huge": ('text,labels\n"' + "a" * 300_000 + '",x\n"b', "t.csv:3: a quote opens a field here"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_misread_table_says_what_was_expected(tmp_path, kind):
    text, message = BAD[kind]
    path = written(tmp_path / "t.csv", text, {"latin": "cp1252", "utf-16": "utf-16-le"}.get(kind, "utf-8"))
    with refuses(message):
        read(path)


def test_tables_that_are_odd_and_right(tmp_path):
    assert read(written(tmp_path / "t.csv", "text,labels\n")) == ([], [], None)
    assert read(written(tmp_path / "t.csv", "text\nHello, world\n")).texts == ["Hello, world"]
    assert read(written(tmp_path / "t.csv", "text,labels\na\0b,x\n")).texts == ["a\0b"]
    huge = "word, " * 300_000
    assert read(written(tmp_path / "t.csv", f'text,labels\n"{huge}",x\nb,y\n')).texts == [huge, "b"]
    # The index that pandas writes has no name; twice the same name harms only who asks for it.
    path = written(tmp_path / "t.csv", ",text,labels,year,year\n0,a,x,1,2\n")
    assert read(path)[:2] == (["a"], [["x"]])
    with refuses("--labels-column: two columns are called 'year': rename one"):
        read(path, Columns(labels="year"))


def test_quotes_that_are_letters(tmp_path):
    """A quote that opens one line and closes another must not join them."""
    lines = 'text\tlabels\n"Foo\tx\nbar"\ty\n'
    assert read(written(tmp_path / "t.tsv", lines)).texts == ['"Foo', 'bar"']
    path = written(tmp_path / "t.csv", 'text,labels\n"a" b,x\n')
    with refuses(
        "t.csv:2: a field has letters behind its closing quote: write quotes within quoted fields twice, or say"
    ):
        read(path)
    assert read(path, Columns(quotes=False)).texts == ['"a" b']
    path = written(tmp_path / "t.csv", "text,labels\n" + "a,x\n" * 20_000 + '"a" b,x\n')
    with refuses("the file is empty: a table begins with a row of column names"):
        read(written(tmp_path / "none.csv", ""), format="csv")
    with refuses("t.csv:20002: a field has letters behind its closing quote"):
        read(path)
    assert next(formats.document_chunks(path, "train", columns=Columns(quotes=False))).n_rows == 4096


def test_a_table_without_a_header(tmp_path):
    path = written(tmp_path / "t.csv", "some words of text,x;y\nothers,y\n")
    with refuses("(without a header, say --no-header)"):
        read(path)
    columns = Columns(text="1", labels="2", header=False)
    assert read(path, columns)[:2] == (["some words of text", "others"], [["x", "y"], ["y"]])


# --- columns


def test_columns_are_joined_and_weighed(tmp_path):
    path = written(tmp_path / "t.csv", "key,title,abstract,note,tags\n7,T,A,,x\n8,,B,N,x\n")
    assert read(path) == (["T A", "B"], [["x"], ["x"]], ["7", "8"])
    assert read(path, Columns(text="title*2, abstract ,note")).texts == ["T T A", "B N"]
    assert read(path, Columns(text="note", id="none")).ids is None
    path = written(tmp_path / "odd.csv", '"a,b*2",labels\nx,y\n')
    assert read(path, Columns(text="a,b*2")).texts == ["x"]
    with refuses("has no column 'titel': do you mean 'title'?: there are 'key', 'title'"):
        read(tmp_path / "t.csv", Columns(text="titel"))
    with pytest.raises(ConfigError, match=r"title\*0: a column counts once or more"):
        read(tmp_path / "t.csv", Columns(text="title*0"))


@pytest.mark.parametrize(
    ("cells", "separator", "first"),
    [
        (["a;b", "b", "c; a"], ";", ["a", "b"]),
        (["a|b", "b"], "|", ["a", "b"]),
        (["a, b", "b, a", "a"], ",", ["a", "b"]),
        (["<http://x/1> <http://x/2>", "http://x/1"], "uris", ["http://x/1", "http://x/2"]),
        (['["a", "b"]', "[]"], "lists", ["a", "b"]),
        (["['a', 'b;c']", "['b']"], "lists", ["a", "b;c"]),
        (["Law, criminal; Trade", "Trade"], ";", ["Law, criminal", "Trade"]),
        (["a", "b"], None, ["a"]),
        (["Paris, Treaty of", *"bcdefghij"], None, ["Paris, Treaty of"]),
    ],
)
def test_what_separates_labels_is_recognised(tmp_path, cells, separator, first):
    path = tmp_path / "t.csv"
    write_with(
        "csv", path, [[i, "words", cell] for i, cell in enumerate(cells)], {"delimiter": ",", "encoding": "utf-8"}
    )
    opened = formats.open_documents(path, "train")
    assert opened.chosen.separator == separator
    assert next(opened.chunks(9)).labels[0] == first


def test_doubtful_labels_are_asked_for_before_training(tmp_path, caplog):
    """To predict, no label is needed; whoever says what they are gets no question."""
    path = written(tmp_path / "t.csv", 'text,tags\na cat,"Paris, Treaty of"\na dog,"Rome, Club of"\n')
    asked = "'tags' holds fields such as 'Paris, Treaty of': is that one label or several? say --label-separator ',' or"
    with pytest.raises(InputError, match=re.escape(asked)):
        learn(Corpus(path, "train"), TextConfig(min_df=1, max_df=1.0))
    _, rows = learn(Corpus(path, "train", Columns(separator="none")), TextConfig(min_df=1, max_df=1.0))
    assert rows.label_names == ["Paris, Treaty of", "Rome, Club of"]
    path = written(tmp_path / "u.csv", "text,tags,topics\na cat,x,y\n")
    asked = "no label found: 'tags', 'topics' may all be labels: name it by --labels-column; the first row is"
    with pytest.raises(InputError, match=re.escape(asked)):
        learn(Corpus(path, "train"), TextConfig(min_df=1, max_df=1.0))
    (chunk,) = Corpus(path, "test").chunks()
    assert chunk.labels == [[]]


def test_what_a_model_has_read_is_read_again(tmp_path):
    names, sample = ["headline", "body", "codes", "title"], [["a", "b", "x", "c"]]
    chooser = Chooser("t.csv", names, sample)
    remembered = Columns("headline*2,body", "codes", ";")
    chosen = chooser.choose(Columns(), remembered)
    assert (chosen.text, chosen.labels, chosen.separator) == ([("headline", 2), ("body", 1)], "codes", ";")
    assert Chooser("t.csv", ["text"], [["a"]]).choose(Columns(), remembered).text == [("text", 1)]
    with refuses("the model was trained on 'headline*2,body', but only 'body' is here: name the columns"):
        Chooser("t.csv", ["body", "title"], [["a", "b"]]).choose(Columns(), remembered)


# --- Annif's corpora


def test_annif_corpora_train_unchanged(tmp_path):
    """The same documents as TSV without a header, CSV, JSON lines, and a folder of texts with URIs or names."""
    uris = ["http://www.yso.fi/onto/yso/p1", "http://www.yso.fi/onto/yso/p2"]
    texts, labels = ['a "cat" and so on', "a dog"], [uris, uris[1:]]
    cells = [" ".join(f"<{uri}>" for uri in own) for own in labels]
    written(tmp_path / "d.tsv", "".join(f"{text}\t{cell}\n" for text, cell in zip(texts, cells, strict=True)))
    with open(tmp_path / "d.csv", "w", newline="") as file:
        csv.writer(file).writerows([["text", "subject_uris"], *zip(texts, cells, strict=True)])
    objects = [{"text": t, "subjects": [{"uri": uri} for uri in own]} for t, own in zip(texts, labels, strict=True)]
    written(tmp_path / "d.jsonl", "".join(f"{json.dumps(one)}\n" for one in objects))
    for name in ("d.tsv", "d.csv", "d.jsonl"):
        assert read(tmp_path / name) == (texts, labels, None)
    folder = tmp_path / "full"
    folder.mkdir()
    for name, text, own in zip("ab", texts, labels, strict=True):
        written(folder / f"{name}.txt", text)
        written(folder / f"{name}.tsv", "".join(f"<{uri}>\tname\n" for uri in own))
    written(folder / "c.txt", "new")
    assert read(folder) == ([*texts, "new"], [*labels, []], ["a", "b", "c"])
    for path in folder.glob("*.tsv"):
        written(path.with_suffix(".key"), "tietä\n\n x \n")
        path.unlink()
    assert read(folder).labels == [["tietä", "x"], ["tietä", "x"], []]
    location = DataLocation(str(folder))
    assert location.has_split("test") is False  # the folder is one split, whichever is asked for
    assert location.at("test").documents() is not None
    written(folder / "c.txt", "é", "cp1252")
    with refuses(
        f"{folder / 'c.txt'}:1: byte 1 of the line (0xe9) is not UTF-8: if 'é' is right, say --encoding cp1252"
    ):
        read(folder)
    assert formats.read_documents(folder, "train", "fulltext", Columns(encoding="cp1252")).texts[2] == "é"


def test_annif_s_own_files(shared_data):
    folder = shared_data / "annif-archaeology"
    if not folder.exists():
        pytest.skip("needs ../shared/data/annif-archaeology (not shipped)")
    found = [formats.read_documents(folder / f"documents.{kind}", "train") for kind in ("tsv", "csv", "jsonl")]
    assert found[0] == found[1] == found[2]
    assert found[0].n_rows == 6404
    assert formats.read_documents(folder / "fulltext", "train").n_rows == 20


# --- tables in memory


def tables_in_memory():
    rows = {"id": ["p", "q"], "title": ["a cat", "a dog"], "tags": [["x", "y"], ["x"]]}
    yield pa.table(rows)
    for name in ("pandas", "polars"):
        yield pytest.importorskip(name).DataFrame(rows)
    yield pytest.importorskip("pandas").DataFrame(rows).set_index("id")


def test_tables_in_memory():
    for table in tables_in_memory():
        location = xmlpreck.load_data(table)
        (chunk,) = location.documents().chunks()
        assert chunk == (["a cat", "a dog"], [["x", "y"], ["x"]], ["p", "q"]), type(table)
        assert not location.has_split("test")
        with refuses(f"{type(table).__name__}: has no column 'text'"):
            list(xmlpreck.load_data(table, text="text").documents().chunks())


def test_data_sets_of_hugging_face():
    datasets = pytest.importorskip("datasets")
    if not hasattr(datasets, "Dataset"):
        pytest.skip("`datasets` is the folder of this checkout: the library is not installed")
    whole = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "labels": [[0], [1], [0, 1]]})
    (chunk,) = xmlpreck.load_data(whole.select([2, 0])).documents().chunks()
    assert chunk == (["c", "a"], [["0", "1"], ["0"]], None)
    names = datasets.ClassLabel(names=["joy", "fear"])
    for kind, value in ((datasets.List(names), [1, 0]), (names, 1)):
        features = datasets.Features({"text": datasets.Value("string"), "labels": kind})
        one = datasets.Dataset.from_dict({"text": ["a"], "labels": [value]}, features=features)
        (chunk,) = xmlpreck.load_data(one).documents().chunks()
        assert chunk.labels == [["fear", "joy"] if isinstance(value, list) else ["fear"]]


def test_a_table_trains_and_keeps_its_ids(tmp_path):
    table = pa.table(
        {
            "nr": [f"doc {i}" for i in range(40)],
            "title": ["cat milk", "dog bone", "cat dog", "milk bone"] * 10,
            "tags": ["cat", "dog", "cat;dog", "food"] * 10,
        }
    )
    location = xmlpreck.load_data(table, id="nr")
    model = xmlpreck.fit(location, tune=False, threads=1, settings={"text.max_df": 1.0})
    assert model.label_names == ["cat", "dog", "food"]
    assert (
        model.info["data"] | {"text_column": "title", "label_separator": ";", "id_column": "nr"} == model.info["data"]
    )
    xmlpreck.predict(model, table.slice(0, 2), tmp_path / "P.csv", xmlpreck.PredictionOptions(k=1))
    assert [line.split(",")[:3] for line in (tmp_path / "P.csv").read_text().splitlines()] == [
        ["row", "id", "label 1"], ["0", "doc 0", "cat"], ["1", "doc 1", "dog"]
    ]  # fmt: skip
    assert xmlpreck.explain(model, table, "doc 3", k=1).to_dict()["labels"][0]["name"] == "food"
    with pytest.raises(InputError, match="--row 3: Table: no rows have that id; the first is 'doc 0'"):
        xmlpreck.explain(model, table, 3)


# --- Parquet

LABEL_COLUMNS = {
    "texts": (pa.array([["a", "b"], [], None], pa.list_(pa.string())), [["a", "b"], [], []]),
    "large texts": (pa.array([["a"], [], ["c"]], pa.large_list(pa.large_string())), [["a"], [], ["c"]]),
    "numbers": (pa.array([[3, 1], [], [2]], pa.list_(pa.int32())), [["3", "1"], [], ["2"]]),
    "one text": (pa.array(["a", "", None]), [["a"], [], []]),
    "one number": (pa.array([7, None, 0]), [["7"], [], ["0"]]),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), [["a"], ["b"], ["a"]]),
}


@pytest.mark.parametrize("kind", LABEL_COLUMNS)
@pytest.mark.parametrize("rows_per_chunk", [1, 2, 100])
def test_parquet_documents(tmp_path, kind, rows_per_chunk):
    column, expected = LABEL_COLUMNS[kind]
    texts = ["été", "", "слово"]
    pq.write_table(pa.table({"id": [1, 2, 3], "text": texts, "labels": column}), tmp_path / "d.parquet")
    chunks = list(formats.document_chunks(tmp_path / "d.parquet", "train", rows_per_chunk=rows_per_chunk))
    assert all(len(chunk.texts) <= rows_per_chunk for chunk in chunks)
    assert [text for chunk in chunks for text in chunk.texts] == texts
    assert [names for chunk in chunks for names in chunk.labels] == expected


def test_parquet_without_labels(tmp_path):
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "d.parquet")
    assert read(tmp_path / "d.parquet") == (["a", "b"], [[], []], None)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"body": ["a"], "tags": [["x"]]}, "has no column 'labels': there are 'body', 'tags'"),
        ({"text": ["a"], "tags": [["x"]]}, "has no column 'labels': there are 'text', 'tags'"),
        ({"text": ["a", None], "labels": [["x"], []]}, "row 1: the text is null: give an empty one"),
        ({"text": [5], "labels": [["x"]]}, "row 0: column 'text' is 5, not a text"),
        ({"text": ["a"], "labels": [["x", None]]}, "row 0: label null is not a name"),
        ({"text": ["a"], "labels": [[0.5]]}, "row 0: label 0.5 is not a name: labels are texts or whole numbers"),
        ({"text": ["a"], "labels": [{"x": 1}]}, "row 0: label {'x': 1} is not a name"),
    ],
)
def test_bad_parquet_columns(tmp_path, table, message):
    pq.write_table(pa.table(table), tmp_path / "d.parquet")
    with pytest.raises(InputError) as caught:
        read(tmp_path / "d.parquet", Columns("text", "labels"))
    assert message in str(caught.value)
    assert str(tmp_path / "d.parquet") in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PAR1 not really PAR1"])
def test_not_a_parquet_file(tmp_path, content):
    path = tmp_path / "d.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"d\.parquet: cannot be read as Parquet"):
        read(path, format="parquet")


# What is in a file and was not read.


def lines_file(path, *objects):
    path.write_text("".join(f"{json.dumps(fields)}\n" for fields in objects), encoding="utf-8")
    return Corpus(path, "train", Columns())


def test_fields_that_are_not_read_are_named_once(tmp_path, caplog):
    one = {"id": 1, "title": "a cat", "abstract": "of some age", "labels": ["x"]}
    documents = lines_file(tmp_path / "d.jsonl", one, {"title": "a dog", "target_ind": [3], "year": 2020})
    for _ in range(2):
        (chunk,) = documents.chunks()
        assert chunk == Documents(["a cat of some age", "a dog"], [["x"], ["3"]])
    told = "d.jsonl: text from 'title', 'abstract'; labels from 'labels'; not read: 'id', 'target_ind', 'year'"
    assert [record.getMessage().rpartition("/")[2] for record in caplog.records] == [told]
    caplog.clear()
    pq.write_table(pa.table({"id": [1], "text": ["a"], "tags": [["x"]], "more": [2.0]}), tmp_path / "d.parquet")
    list(Corpus(tmp_path / "d.parquet", "train", Columns("text", "tags")).chunks())
    assert "d.parquet: text from 'text'; labels from 'tags'; ids from 'id'; not read: 'more'" in caplog.text
    caplog.clear()
    list(lines_file(tmp_path / "whole.jsonl", {"text": "a", "labels": ["x"]}, {"text": "b"}).chunks())
    assert caplog.records == []


def test_a_million_fields_are_not_remembered(tmp_path):
    documents = lines_file(tmp_path / "d.jsonl", *({"text": "", f"f{i}": 1, f"g{i}": 2} for i in range(300)))
    assert len(documents.opened.chosen.names) <= 100


@pytest.mark.parametrize(
    ("name", "content", "columns", "told"),
    [
        (
            "d.jsonl",
            '{"title": "a cat", "marks": "x"}\n' * 5,
            Columns(),
            "no column has a name that tells labels: name it by --labels-column; the first row is 'title': 'a cat'",
        ),
        ("d.ft", "a cat\n" * 5, Columns(), "labels are read from __label__NAME before the text"),
        ("d.parquet", None, Columns("text", "none"), "the column 'none' has none: name another by --labels-column"),
    ],
)
def test_training_without_any_label_is_refused(tmp_path, caplog, name, content, columns, told):
    path = tmp_path / name
    if content is None:
        table = {"text": ["a cat"] * 5, "tags": [["x"]] * 5, "none": pa.array([None] * 5, pa.string())}
        pq.write_table(pa.table(table), path)
    else:
        path.write_text(content)
    documents = Corpus(path, "train", columns, "fasttext" if name == "d.ft" else None)
    with pytest.raises(InputError) as raised:
        learn(documents, TextConfig(min_df=1, max_df=1.0))
    assert str(raised.value).startswith(f"{path}: no label found: ")
    assert told in str(raised.value)
    # To be explained or predicted, rows need no labels: they are only told.
    assert vectorize(documents, fit_text([["a cat"]], min_df=1, max_df=1.0), ["x"]).labels.nnz == 0
    assert told in caplog.text


@pytest.mark.parametrize("separator", [";", "|", "\t", ","])
def test_lists_whose_labels_look_like_several_are_told_and_split(tmp_path, caplog, separator):
    """Each item of a list is one label; what may be meant is said, and done when it is asked for."""
    first = f"A{separator} B"
    values = [[first], ["C"], [], None, [f"C{separator}  A{separator}C"], ["D"], [f"E{separator}"], ["F"]]
    pq.write_table(pa.table({"text": ["t"] * 8, "tags": values}), tmp_path / "d.parquet")
    (chunk,) = Corpus(tmp_path / "d.parquet", "train").chunks()
    assert chunk.labels[0] == [first]
    share = f"50% of the labelled documents have one label such as {first!r}"
    assert f"{share}: if these are several, split them by --label-separator {separator!r}" in caplog.text
    caplog.clear()
    (chunk,) = Corpus(tmp_path / "d.parquet", "train", Columns(separator=separator)).chunks()
    assert chunk.labels == [["A", "B"], ["C"], [], [], ["C", "A"], ["D"], ["E"], ["F"]]
    assert len(caplog.records) == 1  # the columns


def test_labels_with_a_comma_now_and_then_are_names(tmp_path, caplog):
    labels = [["Paris, Treaty of"], *([f"x{i}"] for i in range(9)), ["a, b", "c"], ["d, e", "f"]]
    list(lines_file(tmp_path / "d.jsonl", *({"text": "", "labels": names} for names in labels)).chunks())
    assert caplog.records == []


def test_separators_are_for_text_and_not_empty(tmp_path):
    with pytest.raises(InputError, match="--label-separator must be one character or more"):
        Columns(separator="")
    (tmp_path / "train.txt").write_text("1 2 2\n0 0:1\n")
    for data in (str(tmp_path / "train.txt"), "demo", "s3://bucket/rows"):
        with pytest.raises(InputError, match="raw text"):
            find_corpus(data, "train", Columns(separator=";"))


def test_a_label_separator_from_the_command_line(tmp_path, monkeypatch, capsys):
    """It is remembered with the model, so that a report finds the same labels again."""
    monkeypatch.chdir(tmp_path)
    tags = ["cat; dog", "cat", "dog; cow", "cow"] * 10
    pq.write_table(pa.table({"text": [tag.replace(";", "") for tag in tags], "tags": tags}), "train.parquet")
    words = ["--data", "train.parquet", "--text-column", "text", "--labels-column", "tags", "--label-separator", ";"]
    more = ["--set", "text.max_df=1.0", "--no-tune", "--threads", "1", "--out", "m"]
    assert main(["train", *words, *more]) == 0
    scorer = Model.load("m")
    assert scorer.label_names == ["cat", "cow", "dog"]
    assert scorer.info["data"]["label_separator"] == ";"
    assert main(["evaluate", "--pred", "m", "--model", "m", *words, "--resamples", "0"]) == 0
    assert "m: was trained on these rows" in capsys.readouterr().err


def test_columns_that_are_not_utf_8_are_refused(tmp_path):
    """Found by the fuzzer: Arrow checks no bytes until they become texts."""
    bad = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xb0a"))
    pq.write_table(pa.table({"text": bad, "labels": ["x"]}), tmp_path / "d.parquet")
    with refuses("d.parquet: cannot be read as a table: 'utf-8' codec can't decode byte 0xb0"):
        read(tmp_path / "d.parquet")


def test_training_rows_of_texts_and_ids_of_changed_rows(tmp_path, monkeypatch, capsys):
    """evaluate --train takes texts, too; compare names rows by their own ids."""
    monkeypatch.chdir(tmp_path)
    lines = [
        "id;title;tags",
        *(f"doc-{i};{'cat milk' if i % 2 else 'dog bone'};{'cat' if i % 2 else 'dog'}" for i in range(20)),
    ]
    for name in ("a.csv", "b.csv"):
        written(tmp_path / name, "\n".join(lines) + "\n")
    words = ["--no-tune", "--threads", "1", "--set", "text.max_df=1.0", "--set", "text.min_df=1", "--out"]
    assert main(["train", "--data", "a.csv", *words, "m"]) == 0
    assert main(["predict", "--model", "m", "--data", "b.csv", "--topk", "1", "--out", "P.parquet"]) == 0
    written(tmp_path / "bad.jsonl", '{"labels": [0], "scores": [1.0]}\n' * 20)
    capsys.readouterr()
    words = ["compare", "P.parquet", "bad.jsonl", "--model", "m", "--data", "b.csv", "--train", "a.csv", "--ks", "1"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert re.search(r"^row doc-\d+: 100\.0 -> 0\.0; true: dog$", out, re.MULTILINE)
    assert "PSP@1" in out


def test_a_format_chooses_among_the_tables_of_a_folder(tmp_path):
    written(tmp_path / "train.tsv", "text\tlabels\na cat\tx\n")
    written(tmp_path / "train.csv", "text,labels\na dog,y\n")
    written(tmp_path / "train.jsonl", '{"text": "an ape", "labels": ["z"]}\n')
    for format in ("tsv", "csv", "jsonl"):
        assert find_source(tmp_path, "train", format).path == tmp_path / f"train.{format}"
    (chunk,) = Corpus(tmp_path, "train", format="tsv").chunks()
    assert (chunk.texts, chunk.labels) == (["a cat"], [["x"]])
    (tmp_path / "train.csv").unlink()
    written(tmp_path / "train.txt", "text,labels\na hen,v\n")  # a table by its content
    assert find_source(tmp_path, "train", "csv").path == tmp_path / "train.txt"
