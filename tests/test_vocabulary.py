"""Vocabularies of labels: every format gives the same labels, and broken ones are refused by file and line."""

import gzip
import json
import re

import pytest

from xmlpreck.config import InputError
from xmlpreck.data.formats.vocabularies import read_vocabulary
from xmlpreck.data.vocabulary import Label, Vocabulary, align, find_cycle, from_lines, to_lines

CSV = """id,name,alternative names,description,broader,deprecated
http://x.org/a,animals,beasts|fauna,All that move.,,
http://x.org/c,cats,"felines",,http://x.org/a,
http://x.org/d,"dogs, wild",,,http://x.org/a,
http://x.org/o,omnibus,,,,true
"""
TURTLE = """@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix x: <http://x.org/> .
x:d a skos:Concept ; skos:prefLabel "dogs, wild"@en, "Wildhunde"@de .
x:c a skos:Concept ; skos:prefLabel "cats"@en ; skos:altLabel "felines"@en, "Katzen"@de ; skos:broader x:a .
x:a a skos:Concept ; skos:prefLabel "animals"@en ; skos:altLabel "fauna"@en, "beasts"@en ; skos:narrower x:d ;
    skos:definition "All that move."@en .
x:o a skos:Concept ; skos:prefLabel "omnibus"@en ; owl:deprecated true .
x:group a skos:Collection ; skos:member x:a .
"""
LABELS = {
    Label("http://x.org/a", "animals", ("beasts", "fauna"), "All that move."),
    Label("http://x.org/c", "cats", ("felines",), "", ("http://x.org/a",)),
    Label("http://x.org/d", "dogs, wild", (), "", ("http://x.org/a",)),
    Label("http://x.org/o", "omnibus", deprecated=True),
}


def refuses(text):
    return pytest.raises(InputError, match=re.escape(text))


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def as_tsv(text):
    return (
        text.replace('"dogs, wild"', "dogs! wild").replace('"felines"', "felines").replace(",", "\t").replace("!", ",")
    )


def as_json_lines():
    return "".join(json.dumps(label.to_dict()) + "\n" for label in sorted(LABELS))


@pytest.mark.parametrize(
    ("name", "text"),
    [("v.csv", CSV), ("v.tsv", as_tsv(CSV)), ("v.jsonl", as_json_lines())],
)
def test_formats_give_the_same_labels(name, text, tmp_path):
    assert set(read_vocabulary(write(tmp_path / name, text)).labels) == LABELS
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert set(read_vocabulary(packed).labels) == LABELS


def test_skos_gives_the_labels_of_the_table(tmp_path):
    rdflib = pytest.importorskip("rdflib", reason="needs the extra skos")
    turtle = write(tmp_path / "v.ttl", TURTLE)
    assert set(read_vocabulary(turtle, "en").labels) == LABELS
    graph = rdflib.Graph().parse(turtle)
    for suffix, kind in ((".rdf", "xml"), (".nt", "nt")):
        graph.serialize(tmp_path / f"v{suffix}", format=kind)
        assert set(read_vocabulary(tmp_path / f"v{suffix}", "en").labels) == LABELS


def test_languages(tmp_path, caplog):
    pytest.importorskip("rdflib", reason="needs the extra skos")
    path = write(tmp_path / "v.ttl", TURTLE)
    names = {label.id[-1]: label.name for label in read_vocabulary(path, "DE").labels}
    assert names == {"d": "Wildhunde", "c": "cats", "a": "animals", "o": "omnibus"}  # what has no German name keeps one
    assert read_vocabulary(path).names == read_vocabulary(path, "en").names
    assert "names in de, en; en is taken: say another by --label-language" in caplog.text
    with refuses("--label-language 'fi'"):
        read_vocabulary(path, "fi")
    table = write(tmp_path / "v.csv", "uri,notation,label_fi,label_sv\nhttp://x,1,kissa,katt\n")
    assert read_vocabulary(table, "sv").names == ["katt"]


def test_names_alone(tmp_path):
    path = write(tmp_path / "label_names.json", json.dumps({"17": "cats", "4": "dogs"}))
    assert read_vocabulary(path).labels == (Label("17", "cats"), Label("4", "dogs"))
    assert read_vocabulary(write(tmp_path / "labels.txt", "cats\ndogs\n")).ids == ["cats", "dogs"]
    annif = write(tmp_path / "subjects.tsv", "<http://x.org/a>\tanimals\n<http://x.org/c>\tcats\n")
    assert read_vocabulary(annif).labels == (Label("http://x.org/a", "animals"), Label("http://x.org/c", "cats"))


def test_labels_of_lf_sets(tmp_path):
    titles = [{"uid": "B01", "title": "red shoe", "content": "for feet"}, {"uid": "B02", "title": "hat"}]
    path = write(tmp_path / "lbl.json", "".join(json.dumps(one) + "\n" for one in titles))
    assert read_vocabulary(path).labels == (Label("B01", "red shoe", description="for feet"), Label("B02", "hat"))
    write(tmp_path / "lbl_X_Xf.txt", "2 3\n0:1 2:0.5\n1:2\n")
    assert read_vocabulary(path).features.toarray().tolist() == [[1, 0, 0.5], [0, 2, 0]]
    assert read_vocabulary(tmp_path / "lbl_X_Xf.txt").names == ["0", "1"]
    write(tmp_path / "lbl_X_Xf.txt", "1 3\n0:1\n")
    with refuses("lbl_X_Xf.txt: has 1 labels"):
        read_vocabulary(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,name\na,cats\nb,dogs\na,cows\n", "v.csv:4: the id 'a' is there twice, first in line 2"),
        ("id,name\na,cats\n,dogs\n", "v.csv:3: a label has no id"),
        ("id,name\na,cats\nb, \n", "v.csv:3: the label 'b' has no name"),
        ("id,name,broader\na,cats,b\nc,cows,\n", "v.csv:2: the broader label 'b' is no id of this vocabulary"),
        ("id,name,broader\na,cats,b\nb,beasts,c\nc,all,a\n", "v.csv:2: a label is broader than itself: 'a' -> 'b'"),
        ("id,name,broader\nz,zoo,\na,cats,a\n", "v.csv:3: a label is broader than itself: 'a' -> 'a'"),
        ("key,name\na,cats\n", "v.csv:1: a table of labels needs a first row with id and name, but it is 'key'"),
        ("id,name,label\na,cats,c\n", "v.csv:1: two columns hold the names of labels"),
        ("id,name,deprecated\na,cats,maybe\n", "v.csv:2: deprecated is 'maybe'"),
        ("id,name\n", "v.csv: has no label"),
    ],
)
def test_broken_tables_are_refused_by_line(text, message, tmp_path):
    with refuses(message):
        read_vocabulary(write(tmp_path / "v.csv", text))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("v.jsonl", '{"id": "a", "name": "cats"}\n{"id": "a", "name": "x"}\n', "v.jsonl:2: the id 'a' is there twice"),
        ("v.jsonl", '{"id": "a", "name": "cats"}\n{"id": ', "v.jsonl:2: is not JSON"),
        ("v.jsonl", '{"id": "a", "name": "cats"}\n{"id": "b", "name": {"en": [[1]]}}\n', "v.jsonl:2: name is"),
        ("v.jsonl", '{"id": "a", "name": "cats \\ud800"}\n', "v.jsonl:1: holds half of a surrogate pair"),
        ("v.json", '{"a": "cats", "b": "dogs", "a": "cows"}', "v.json:entry 3: the id 'a' is there twice"),
        ("v.json", '{"a": 5}', "v.json:entry 1: 'a' is neither a name nor an object"),
        ("v.json", "[1]", "v.json: is JSON, but no object of ids and names"),
        ("v.json", "[" * 100_000, "v.json: cannot be read as JSON"),
        ("v.xyz", "a", "v.xyz: a file of labels is one of .csv"),
    ],
)
def test_broken_files_are_refused(name, text, message, tmp_path):
    with refuses(message):
        read_vocabulary(write(tmp_path / name, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TURTLE.replace("x:a a skos", "x:a skos:broader x:c ; a skos"), "v.ttl:6: a label is broader than itself"),
        (
            TURTLE.replace('skos:prefLabel "cats"@en', 'skos:prefLabel "cats"@en, "pets"@en'),
            "v.ttl:5: http://x.org/c has two",
        ),
        (TURTLE.replace('skos:prefLabel "cats"@en ;', ""), "v.ttl:5: the label 'http://x.org/c' has no name"),
        (TURTLE.replace("x:d a", "x:d is a"), "v.ttl:4: is not Turtle"),
    ],
)
def test_broken_skos_is_refused_by_line(text, message, tmp_path):
    pytest.importorskip("rdflib", reason="needs the extra skos")
    with refuses(message):
        read_vocabulary(write(tmp_path / "v.ttl", text), "en")


def test_hostile_skos(tmp_path):
    pytest.importorskip("rdflib", reason="needs the extra skos")
    secret = write(tmp_path / "secret", "a secret")
    head = (
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
        'xmlns:s="http://www.w3.org/2004/02/skos/core#">'
    )
    one = '<s:Concept rdf:about="&x;a"><s:prefLabel>%s</s:prefLabel></s:Concept></rdf:RDF>'
    short = '<!ENTITY x "http://x/">'
    bomb = short + "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10 if i else "ha" * 10}">' for i in range(10))
    entities = (
        (bomb, "&e9;"),
        (f'{short}\n<!ENTITY e SYSTEM "{secret.as_uri()}">', "&e;"),
        (f'{short}\n<!ENTITY e "{"ha" * 1000}">', "&e;" * 1000),
    )
    for entity, text in entities:
        with refuses("an entity that is no short text is refused"):
            read_vocabulary(write(tmp_path / "v.rdf", f"<!DOCTYPE r [{entity}]>{head}{one % text}"))
    path = write(tmp_path / "v.rdf", f"<!DOCTYPE r [{short}]>{head}{one % 'cats'}")
    assert read_vocabulary(path).labels == (Label("http://x/a", "cats"),)


def test_a_long_chain_of_broader_labels_is_no_cycle():
    chain = {str(place): [str(place + 1)] for place in range(50_000)}
    assert find_cycle(chain) == []
    assert len(find_cycle(chain | {"50000": ["49990"]})) == 11


def test_align_by_id_by_name_and_by_position(tmp_path, caplog):
    vocabulary = read_vocabulary(write(tmp_path / "v.csv", CSV))
    by_id = align(vocabulary, "v.csv", ["http://x.org/d", "http://x.org/q"], 2)
    assert [label.name for label in by_id.vocabulary.labels] == ["dogs, wild", "http://x.org/q", "animals", "cats"]
    assert by_id.keys == by_id.vocabulary.ids  # what is deprecated and has no rows is left out
    assert "has not 1 of the data's labels, such as 'http://x.org/q'" in caplog.text
    by_name = align(vocabulary, "v.csv", ["cats", "omnibus"], 2)
    assert by_name.keys == ["cats", "omnibus", "animals", "dogs, wild"]
    assert by_name.vocabulary.labels[1].deprecated
    with refuses("v.csv: has none of the data's labels"):
        align(vocabulary, "v.csv", ["horses"], 1)
    assert align(vocabulary, "v.csv", None, 4).vocabulary == vocabulary
    with refuses("v.csv: has 4 labels, but the data 3"):
        align(vocabulary, "v.csv", None, 3)
    twins = Vocabulary((Label("1", "bank"), Label("2", "bank")))
    with refuses("two labels have the name 'bank'"):
        align(twins, "v.csv", ["bank"], 1)


def test_lines_of_a_model_round_trip():
    vocabulary = Vocabulary(tuple(sorted(LABELS)))
    assert from_lines(to_lines(vocabulary)) == vocabulary


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "{}",
        '{"id": 1, "name": "a"}',
        '{"id": "a", "name": "a", "x": 1}',
        '{"id": "a", "name": "a", "broader": [1]}',
    ],
)
def test_damaged_lines_of_a_model_are_refused(line):
    with pytest.raises(ValueError, match="line 1"):
        from_lines([line])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("v.csv", "id,name\na,cats\n"),
        ("v.jsonl", '{"id": "a", "name": "cats"}\n'),
        ("v.json", '{"a": "cats"}'),
        ("list.json", '[\n{"id": "a", "name": "cats"}]'),
        ("v.txt", "a\n"),
    ],
)
def test_a_byte_order_mark_is_no_part_of_a_label(name, text, tmp_path):
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [label.id for label in read_vocabulary(path).labels] == ["a"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.jsonl", b"", "v.jsonl: the file is empty"),
        ("v.json", b'{"a": "x", "a": "y"}', "v.json:entry 2: the id 'a' is there twice, first in entry 1"),
        ("v.csv", "id,name\na,caf\xe9\n".encode("latin-1"), "it is cp1252: save the file as UTF-8"),
    ],
)
def test_broken_files_say_what_to_do(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with refuses(message):
        read_vocabulary(path)
