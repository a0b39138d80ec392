"""Tests of xmlpreck.integrations.annif, run by test_annif.py within Annif's own environment.

They ask of this backend what Annif's tests ask of its omikuji backend, on the same corpus.
"""

import os
import unittest.mock
from pathlib import Path

import annif
import annif.analyzer
import annif.backend
import annif.corpus
import annif.vocab
import pytest
from annif.corpus import Document
from annif.exception import NotInitializedException, NotSupportedException

import xmlpreck
import xmlpreck.integrations.annif

CORPUS = Path(os.environ["ANNIF_CORPUS"])
ARCHAEOLOGY = "http://www.yso.fi/onto/yso/p1265"
TEXT = "Arkeologia on tiede, joka tutkii ihmisen menneisyyttä muinaisjäännösten avulla. Arkeologia, arkeologia."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def project(folder):
    vocabulary = annif.vocab.AnnifVocabulary("archaeology", str(folder))
    vocabulary.load_vocabulary(annif.vocab.VocabFileTSV(str(CORPUS / "subjects.tsv"), "fi"))
    project = unittest.mock.Mock()
    project.analyzer = annif.analyzer.get_analyzer("snowball(finnish)")
    project.vocab, project.subjects, project.datadir = vocabulary, vocabulary.subjects, str(folder)
    return project


def corpus_of(path, project):
    return annif.corpus.DocumentFileTSV(str(path), project.subjects)


@pytest.fixture(scope="module")
def documents(folder, project):
    """The first documents of the corpus: enough to learn what archaeology is."""
    lines = (CORPUS / "documents.tsv").read_text("utf-8").splitlines(keepends=True)
    path = folder / "documents-train.tsv"
    path.write_text("".join(lines[:1500] + [line for line in lines if f"{ARCHAEOLOGY}>" in line][:50]), "utf-8")
    return corpus_of(path, project)


def backend(project, **params):
    kind = annif.backend.get_backend("xmlpreck")
    return kind(backend_id="xmlpreck", config_params=params, project=project)


@pytest.fixture(scope="module")
def trained(project, documents, folder):
    (folder / "xmlpreck-model").mkdir()  # an empty folder is no obstacle
    found = backend(project, tune="false", epochs="3")
    found.train(documents)
    return found


def test_default_params(project):
    params = backend(project).params
    assert (params["limit"], params["min_df"], params["ngram"]) == (100, 1, 1)


def test_the_language_of_the_project_is_not_a_setting_of_ours(project):
    found = backend(project, language="fi", ngram="2", epochs="4", name="x")
    assert found._settings(found.params) == {"ngrams": 2, "epochs": 4, "min_df": 1, "max_df": 1.0}


def test_suggest_without_a_model(project, tmp_path):
    other = unittest.mock.Mock(datadir=str(tmp_path))
    with pytest.raises(NotInitializedException):
        backend(other).suggest([Document(text="example text")])


def test_train(trained, folder):
    assert trained._model is not None
    assert trained.is_trained
    model = xmlpreck.load_model(folder / "xmlpreck-model")
    assert model.calibration is not None
    assert ARCHAEOLOGY in model.label_names
    assert model.info["config"]["train"]["epochs"] == 3
    for line in (folder / "xmlpreck-train.jsonl").read_text("utf-8").splitlines():
        assert '"labels": ["http' in line


def test_documents_without_words_or_subjects_are_left_out(project, tmp_path):
    path = tmp_path / "documents.tsv"
    lines = ("nonexistent\t<http://example.com/none>", f"arkeologia\t<{ARCHAEOLOGY}>", f"...\t<{ARCHAEOLOGY}>")
    path.write_text("\n".join(lines), "utf-8")
    rows = list(backend(project)._rows(corpus_of(path, project)))
    assert [row["labels"] for row in rows] == [[ARCHAEOLOGY]]


def test_train_ngrams_and_cached(trained, project, documents, tmp_path):
    other = unittest.mock.Mock(
        datadir=str(tmp_path), analyzer=project.analyzer, subjects=project.subjects, vocab=project.vocab
    )
    found = backend(other, ngram=2, tune=False, epochs=1, calibrate=False)
    found.train(documents)
    assert found._model.vectorizer.config.ngrams == 2
    before = found._model
    again = backend(other, ngram=1, tune=False, epochs=1, calibrate=False)
    again.train("cached")
    assert again._model.vectorizer.config.ngrams == 1
    assert again._model.n_features < before.n_features


def test_train_without_documents(project, tmp_path):
    path = tmp_path / "empty.tsv"
    path.write_text("")
    with pytest.raises(NotSupportedException):
        backend(project).train(corpus_of(path, project))


def test_suggest(trained, project):
    results = backend(project, limit=8).suggest([Document(text=TEXT), Document(text="j"), Document(text="")])
    assert 0 < len(results[0]) <= 8
    scores = [result.score for result in results[0]]
    assert all(0 < score <= 1 for score in scores)
    assert project.subjects.by_uri(ARCHAEOLOGY) in [result.subject_id for result in results[0]]
    assert len(results[1]) == len(results[2]) == 0


def test_learn(trained, project, tmp_path):
    path = tmp_path / "new.tsv"
    uri = "http://www.yso.fi/onto/yso/p10073"
    path.write_text(f"xyzzy plugh\t<{uri}>\n" * 30, "utf-8")
    known = backend(project)
    known.initialize()
    assert len(known.suggest([Document(text="xyzzy plugh")])[0]) == 0
    known.learn(corpus_of(path, project))
    (best, *_) = known.suggest([Document(text="xyzzy plugh")])[0]
    assert best.subject_id == project.subjects.by_uri(uri)
    assert 0 < best.score <= 1
