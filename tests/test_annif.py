"""Real, unmodified Annif: as a client of the server, and with the backend xmlpreck.integrations.annif.

Annif has an environment of its own: XMLPRECK_ANNIF is the path of its Python (docs/serving.md says how to make it).
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from helpers import ROOT
from serving import serving

import xmlpreck

SECONDS = 900  # for one command: a first one compiles kernels


@pytest.fixture(scope="module")
def python():
    found = os.environ.get("XMLPRECK_ANNIF")
    if not found:
        pytest.skip("needs Annif in an environment of its own: XMLPRECK_ANNIF is the path of its Python")
    return Path(found)


@pytest.fixture(scope="module")
def corpus(shared_data):
    return shared_data / "annif-archaeology"


def own_cache():
    """Keep Annif's numba, of another version, from taking the place of this one's kernels."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    return {} if given is None else {"NUMBA_CACHE_DIR": f"{given}-annif"}


def run(words, folder, text=None, **environment):
    done = subprocess.run(
        [*map(str, words)],
        cwd=folder,
        env=os.environ | {"ANNIF_CONFIG": "annif.default_config.ProductionConfig", **own_cache()} | environment,
        input=text,
        text=True,
        capture_output=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_backend_in_annifs_own_environment(python, corpus, tmp_path):
    environment = {"ANNIF_CORPUS": str(corpus), "PYTHONPATH": str(ROOT)}
    words = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, "-c", os.devnull]
    out = run([*words, ROOT / "tests/annif_backend.py"], tmp_path, **environment)
    assert "passed" in out
    assert "skipped" not in out


@pytest.fixture(scope="module")
def documents(corpus):
    """The lines of the corpus whose subjects are all in its vocabulary: an unknown one would end Annif."""
    lines = (corpus / "documents.tsv").read_text("utf-8").splitlines(keepends=True)
    return [line for line in lines if "dummy_subject" not in line][:2000]


@pytest.fixture(scope="module")
def model(documents, tmp_path_factory):
    """A model of the corpus: its labels are the subjects' URIs."""
    path = tmp_path_factory.mktemp("corpus") / "documents.tsv"
    path.write_text("".join(documents), "utf-8")
    return xmlpreck.fit(path, tune=False, epochs=2, threads=1)


def test_annif_lists_suggests_and_evaluates_by_the_server(python, corpus, documents, model, tmp_path):
    """`backend=http` of Annif, its metrics and its client, on its archaeology corpus."""
    model.save(tmp_path / "words")
    some = documents[:60]
    (tmp_path / "some.tsv").write_text("".join(some), "utf-8")
    text = some[3].partition("\t")[0]
    expected = [name.strip("<>") for name, _ in model.predict(text, k=3)]
    with serving("--model", tmp_path / "words") as server:
        (tmp_path / "projects.cfg").write_text(
            "[remote]\nname=remote\nlanguage=fi\nbackend=http\nvocab=yso\nanalyzer=simple\n"
            f"endpoint={server.address}/v1/projects/words/suggest\n"
        )
        annif = python.parent / "annif"
        run([annif, "load-vocab", "yso", corpus / "subjects.tsv", "--language", "fi"], tmp_path)
        listed = run([annif, "list-projects"], tmp_path)
        assert "remote" in listed
        assert "True" in listed  # it is trained, says the server
        suggested = run([annif, "suggest", "remote", "--limit", "3"], tmp_path, text)
        lines = [line.split("\t") for line in suggested.splitlines() if line]
        assert [line[0].strip("<>") for line in lines] == expected
        assert all(0 < float(line[-1]) <= 1 for line in lines)
        run([annif, "eval", "remote", "some.tsv", "--limit", "5", "--metrics-file", "m.json"], tmp_path)
        found = json.loads((tmp_path / "m.json").read_text())
        texts = [line.partition("\t")[0] for line in some]
        hits = [bool(best) and best[0][0] in line for best, line in zip(model.predict(texts, k=1), some, strict=True)]
        assert found["Precision@1"] == pytest.approx(sum(hits) / len(hits))
        code = (
            "import json, sys; from annif_client import AnnifClient; c = AnnifClient(sys.argv[1]);"
            "print(json.dumps([[p['project_id'] for p in c.projects], c.get_project('words')['name'],"
            "c.suggest('words', sys.argv[2], limit=3),"
            "c.suggest_batch('words', [{'text': sys.argv[2], 'document_id': 'a'}, {'text': ''}], limit=2)]))"
        )
        ids, name, results, batch = json.loads(run([python, "-c", code, f"{server.address}/v1/", text], tmp_path))
        assert (ids, name) == (["words"], "words")
        assert [one["uri"] for one in results] == expected
        assert [one["document_id"] for one in batch] == ["a", None]
        assert [[one["uri"] for one in each["results"]] for each in batch] == [expected[:2], []]
