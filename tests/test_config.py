"""Precedence, types, names and ranges of settings."""

import dataclasses
import math
import re

import numpy as np
import pytest

from xmlpreck.config import (
    ALGORITHMS,
    ConfigError,
    RowsConfig,
    RunConfig,
    TextConfig,
    TrainConfig,
    describe,
    from_dict,
    load,
    parse_words,
)


def test_overrides_beat_the_file_and_the_file_beats_defaults(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[train]\neta = 0.25\nk = 3\n[rows]\nbias = 1\n")
    settings = load(path, parse_words(["train.k=7", "train.algo=sgd-max", "rows.unit_norm=false"]))
    assert (settings.train.eta, settings.train.k, settings.train.algo) == (0.25, 7, "sgd-max")
    assert (settings.rows.bias, settings.rows.unit_norm) == (1.0, False)
    assert settings.train.epochs == TrainConfig().epochs
    assert settings.fixed == {"eta", "k", "algo"}
    assert from_dict(settings.to_dict(), "again").to_dict() == settings.to_dict()


def test_no_file_and_no_words_are_the_defaults():
    assert load(None) == RunConfig()


def test_every_setting_has_a_help_text():
    assert all(text for _, text in describe(TrainConfig).values())


NUMBERS = [
    (section, item)
    for section, kind in (("rows", RowsConfig), ("train", TrainConfig), ("text", TextConfig))
    for item in dataclasses.fields(kind)
    if type(item.default) in (int, float)
]


@pytest.mark.parametrize(("section", "item"), NUMBERS, ids=lambda part: getattr(part, "name", part))
def test_every_number_has_two_bounds(section, item):
    """A value beyond them is refused in words and from Python; the bounds themselves are not."""
    kind = {"rows": RowsConfig, "train": TrainConfig, "text": TextConfig}[section]
    low, high = item.metadata["bounds"]
    assert low < high < 2**65 or high < 1e39
    others = {"algo": "sgd-avg"} if section == "train" else {}
    for value in (low, high, np.float32(low), np.int64(low)):
        if type(item.default) is float or isinstance(value, int | np.integer):
            assert type(getattr(kind(**others | {item.name: max(value, low)}), item.name)) is type(item.default)
    beyond = [low - 1, 10 * high + 1, 10**30 * high, "1", None, True]
    beyond += [math.nan, math.inf, -math.inf] if type(item.default) is float else [low + 0.5]
    for value in beyond:
        with pytest.raises(ConfigError, match=f"{section}.{item.name} must be "):
            kind(**{item.name: value})
    for word in ("-1e999", "nan", "1e39", "9" * 40, "9" * 5000):
        with pytest.raises(ConfigError, match=f"{section}.{item.name} must be ") as caught:
            load(None, parse_words([f"{section}.{item.name}={word}"]))
        assert len(str(caught.value)) < 300


def test_threads_do_not_crowd_the_cores():
    """300 of them on two cores took minutes for what two do in a second."""
    assert [TrainConfig(threads=n).n_threads for n in (1, 2, 3)] == [1, 2, 3]
    assert TrainConfig(threads=4096).n_threads == 4 * TrainConfig().n_threads


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("train.k=0", "train.k must be 1 or more, but is 0"),
        ("train.k=2.5", "train.k must be a whole number, but is 2.5"),
        ("train.k=true", "train.k must be a whole number, but is True"),
        ("train.algo=sgd", re.escape(f"train.algo must be one of {', '.join(ALGORITHMS)}, but is 'sgd'")),
        ("train.decay=fast", "train.decay must be one of constant, sqrt, linear"),
        ("train.eta=0", "train.eta must be a positive number"),
        ("train.eta=nan", "train.eta must be a positive number, at most 1e\\+38, but is nan"),
        ("train.tau=-1", "train.tau must be 0 or more"),
        ("train.heldout=1.0", "train.heldout must be a share from 0"),
        ("train.shortlist=0", "no setting train.shortlist"),
        ("train.average_from=-1", "train.average_from must be 0 or more, but is -1"),
        ("train.centroid=inf", "train.centroid must be at most 1e\\+30, but is inf"),
        ("rows.bias=inf", "rows.bias must be at most 1e\\+30, but is inf"),
        ("train.block_rows=0", "train.block_rows must be 1 or more, but is 0"),
        ("train.batch_rows=1000000000", "train.batch_rows must be at most 16777216, but is 1000000000"),
        ("train.epoch=3", "no setting train.epoch; did you mean 'epochs'"),
        ("tain.k=3", "no section 'tain'; did you mean 'train'"),
        ("k=3", "write section.key=value"),
        ("train.k", "write section.key=value"),
        ("rows.unit_norm=1", "rows.unit_norm must be true or false, but is 1"),
    ],
)
def test_bad_words_are_named(word, message):
    with pytest.raises(ConfigError, match=message):
        load(None, parse_words([word]))


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
