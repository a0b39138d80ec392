"""Precedence, types, names and ranges of settings."""

import pytest

from xmlpreck.config import ConfigError, RunConfig, TrainConfig, describe, from_dict, load


def test_overrides_beat_the_file_and_the_file_beats_defaults(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[train]\neta = 0.25\nk = 3\n[rows]\nbias = 1\n")
    settings = load(path, ["train.k=7", "train.algo=sgd-max", "rows.unit_norm=false"])
    assert (settings.train.eta, settings.train.k, settings.train.algo) == (0.25, 7, "sgd-max")
    assert (settings.rows.bias, settings.rows.unit_norm) == (1.0, False)
    assert settings.train.epochs == TrainConfig().epochs
    assert settings.fixed == {"eta", "k", "algo"}
    assert from_dict(settings.to_dict(), "again").to_dict() == settings.to_dict()


def test_no_file_and_no_words_are_the_defaults():
    assert load(None) == RunConfig()


def test_every_setting_has_a_help_text():
    assert all(text for _, text in describe(TrainConfig).values())


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("train.k=0", "train.k must be 1 or more, but is 0"),
        ("train.k=2.5", "train.k must be a whole number, but is 2.5"),
        ("train.k=true", "train.k must be a whole number, but is True"),
        ("train.algo=sgd", "train.algo must be one of sgd-avg, sgd-max, perceptron-avg, perceptron-max, but is 'sgd'"),
        ("train.decay=fast", "train.decay must be one of constant, sqrt, linear"),
        ("train.eta=0", "train.eta must be a positive number"),
        ("train.eta=nan", "train.eta must be a positive number, but is nan"),
        ("train.tau=-1", "train.tau must be 0 or more"),
        ("train.heldout=1.0", "train.heldout must be a share from 0"),
        ("train.shortlist=-1", "train.shortlist must be 0 or more, but is -1"),
        ("train.average_from=-1", "train.average_from must be 0 or more, but is -1"),
        ("train.centroid=inf", "train.centroid must be 0 or more, but is inf"),
        ("rows.bias=inf", "rows.bias must be 0 or more, but is inf"),
        ("train.epoch=3", "no setting train.epoch; did you mean 'epochs'"),
        ("tain.k=3", "no section 'tain'; did you mean 'train'"),
        ("k=3", "write section.key=value"),
        ("train.k", "write section.key=value"),
        ("rows.unit_norm=1", "rows.unit_norm must be true or false, but is 1"),
    ],
)
def test_bad_words_are_named(word, message):
    with pytest.raises(ConfigError, match=message):
        load(None, [word])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train\n", "cannot be read as TOML"),
        ("train = 3\n", "is a section"),
        ("[train]\nk = 0\n", "k must be 1 or more"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)
