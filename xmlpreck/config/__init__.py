"""Settings: frozen dataclasses, TOML files, overrides; and the one kind of error that a user causes.

Precedence: a field's default here < a TOML file < `--set section.key=value` and the named flags. A default is
written once, in this file; the command line and the estimator take theirs from it.
"""

import dataclasses
import difflib
import numbers
import re
import sys
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xmlpreck.config.expressions import fault_of
from xmlpreck.machine import n_cores

# Settings of training that are named parameters of `fit` and flags of `train`; the others go by `settings` and --set.
NAMED_SETTINGS = ("algo", "effort", "favour", "k", "epochs", "members", "eta", "tau", "heldout", "threads", "seed")
PAPER_RULES = ("sgd-avg", "sgd-max", "perceptron-avg", "perceptron-max")
BOTH = "hinge+sgd-avg"  # two members, of which the model is the mean
SGD_SHARE = 0.4  # of eta that SGD@k-avg takes as the second member, so that one eta suits both (docs/tuning.md)
ALGORITHMS = ("hinge", *PAPER_RULES, BOTH)
EFFORTS = ("quick", "normal", "best")
FAVOURS = ("top", "tail")
DENSE_TRANSFORMS = ("none", "center", "whiten")
STEP_DECAYS = {"constant": 0.0, "sqrt": 0.5}  # eta / t^this, t = number of the batch
PASS_DECAYS = (*STEP_DECAYS, "linear")
RETIRED = {("train", "shortlist"), ("train", "hinge")}  # settings of older versions that a saved model may still have
MAX_COUNT = 2**31 - 1
MAX_K = 1 << 16
MAX_HASHED = 1 << 26  # each column takes 8 bytes of a vectorizer and 8 of a model, used or not
MAX_NGRAMS = 10  # a text of n words has this many times n terms
WEIGHTINGS = ("tfidf", "bm25")
MAX_LANGUAGE = 30
MAX_STEP = 1e38  # what float32 can hold
THREADS_A_CORE = 4  # more only wait for each other


_SECRET_OPTION = re.compile(r"[^=]*(secret|key|token|password|signature|credential|sig=)", re.IGNORECASE)
# Stores whose addresses have no port: all between :// and @ is credentials, even with a / that should be %2F.
_STORES = re.compile(r"\b((?:s3|gs|gcs|abfss?):/{1,2})([^/@\s]*):[^@\s]*@", re.IGNORECASE)
_PASSWORD = re.compile(r"(\w\w:/{1,2})([^/:\s]*):[^/\s]*@")
_OPTIONS = re.compile(r"\?([^\s?\"'=]+=[^\s?]*?)(?=[\"',;:)]*(?:\s|$))")
MAX_DIGITS = 18  # what int64 can hold


def without_secrets(text: str) -> str:
    """Mask the credentials of every URI in a text: passwords, the key that goes with one on s3, secret options."""
    if ":/" not in text:  # a Path writes // as /
        return text
    text = _STORES.sub(lambda uri: uri[1] if uri[1].lower().startswith("s3:") else f"{uri[1]}{uri[2]}@", text)
    return _OPTIONS.sub(_public_options, _PASSWORD.sub(r"\1\2@", text))


def _public_options(options: re.Match[str]) -> str:
    kept = [option for option in options[1].split("&") if not _SECRET_OPTION.match(option)]
    return "?" + "&".join(kept) if kept else ""


class InputError(ValueError):
    """Bad input, told in one line that names the file, the value and what to do. The CLI exits with 2."""

    def __init__(self, text: str) -> None:
        super().__init__(without_secrets(text))


class ConfigError(InputError):
    """A setting that is unknown or out of range."""


def setting(default: Any, text: str, low: float | None = None, high: float | None = None, rule: str = "") -> Any:
    """Describe a field: its help text and, of a number, the lowest and the highest value that it may have.

    A rule, in words, excludes the bounds that are not whole numbers.
    """
    return field(default=default, metadata={"help": text, "bounds": (low, high), "rule": rule})


def require(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {rule}, but is {value!r:.60}")


def check_settings(section: str, config: Any) -> None:
    """Refuse a value of another type than its setting's default, or out of its bounds; numpy's numbers become plain."""
    for item in dataclasses.fields(config):
        name, value = f"{section}.{item.name}", getattr(config, item.name)
        kind: Any = type(item.default)
        accepted = {int: numbers.Integral, float: numbers.Real}.get(kind, kind)
        is_kind = isinstance(value, accepted) and isinstance(value, bool) == (kind is bool)
        require(is_kind, name, value, f"of type {kind.__name__}")
        low, high = item.metadata["bounds"]
        if low is None:
            continue
        require(value >= low, name, value, item.metadata["rule"] or f"{low} or more")
        require(value <= high, name, value, item.metadata["rule"] or f"at most {high}")
        object.__setattr__(config, item.name, kind(value))


def parse_whole(text: str) -> int | None:
    """Parse a whole number from decimal digits; None if it is none, or has more than MAX_DIGITS digits.

    int() alone raises an error of its own at 4,300 digits, and what it accepts below that overflows in numpy.
    """
    digits = text.lstrip("0")
    is_whole = text.isascii() and text.isdecimal() and len(digits) <= MAX_DIGITS
    return int(digits or "0") if is_whole else None


@dataclass(frozen=True)
class RowsConfig:
    """Change every row before it is scored, in training and in prediction alike."""

    unit_norm: bool = setting(True, "scale every row to Euclidean length 1; turn off only if lengths carry meaning")
    bias: float = setting(
        0.3, "value of a constant feature added to every row; 0 = none. Lower it for rows of many features", 0, 1e30
    )
    n_dense: int = setting(
        0, "how many of the last features are dense, such as an embedding; --dense and --embed set it", 0, MAX_COUNT
    )
    dense_weight: float = setting(
        0.5,
        "share of the dense features in the similarity of two rows: 0 = none, 1 = all; if it is not given, training "
        "chooses it on held-out rows",
        0,
        1,
    )
    dense_transform: str = setting(
        "none",
        "change dense features first: none, center = subtract the mean of the training rows, whiten = also make their "
        "covariance the identity",
    )

    def __post_init__(self) -> None:
        check_settings("rows", self)
        name, kinds = self.dense_transform, DENSE_TRANSFORMS
        require(name in kinds, "rows.dense_transform", name, "one of " + ", ".join(kinds))


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    algo: str = setting(
        "sgd-avg",
        f"update rule: {', '.join(PAPER_RULES)} (the paper's), hinge (each label by itself), {BOTH} (mean of two)",
    )
    effort: str = setting(
        "normal",
        "time that tuning may spend: quick = no trials and few passes, normal, best = twice the time",
    )
    favour: str = setting("top", "top = P@k; tail = weigh rare labels more: higher PSP@k, often lower P@k")
    k: int = setting(
        5,
        "optimise the k labels at the top (all rules but hinge); set it to the number that you will predict",
        1,
        MAX_K,
    )
    epochs: int = setting(3, "passes over the training rows", 1, 100_000)
    members: int = setting(
        1,
        "models of `epochs` passes each, averaged into one; 2 gain a little on small data, at twice the time",
        1,
        100,
    )
    eta: float = setting(
        1.0,
        "step size (a perceptron's ranking does not depend on it); lower it if weights overflow",
        sys.float_info.min,
        MAX_STEP,
        rule=f"a positive number, at most {MAX_STEP:g}",
    )
    decay: str = setting(
        "linear",
        "step size over time: linear = down by an equal amount in each pass, constant, or sqrt = eta / sqrt(t)",
    )
    tau: float = setting(
        0.0,
        "scale of the Gumbel noise added to training scores (all rules but hinge); raise it where labels are noisy or "
        "incomplete",
        0,
        1e30,
    )
    radius: float = setting(0.0, "project the weights onto a ball of this radius; 0 = no projection", 0, MAX_STEP)
    spread: bool = setting(
        False, "spread the negative update over the top-k negatives, not only as many as the rule chooses (sgd)"
    )
    negatives: int = setting(
        300,
        "best negatives of a row that the hinge may lower: three per label of the row (8 to 64), one in 8 of the rest",
        1,
        MAX_K,
    )
    remember: int = setting(
        0,
        "passes after the second score only a row's labels and this many hard negatives (not for +sgd-avg); 0 = all",
        0,
        MAX_K,
    )
    widen: bool = setting(
        False, "after two passes let the top negative of each row use the row's features; helps rare labels"
    )
    idf: float = setting(
        0.0,
        "scale features by this power of their idf while training; 1 suits counts and 0/1 values, 0 tf-idf",
        0,
        10,
    )
    centroid: float = setting(
        1.0, "initial weights: this multiple of the label's mean row; 0 = zeros, as in the paper", 0, 1e30
    )
    average_from: int = setting(
        2, "average the weights from this pass on (at the latest from the last); 0 = no averaging", 0, MAX_COUNT
    )
    batch_rows: int = setting(32, "rows per batch: they are scored with the same weights", 1, 1 << 24)
    block_rows: int = setting(
        65_536, "rows in memory at a time; rows are shuffled by block, then within the block", 1, MAX_COUNT
    )
    heldout: float = setting(
        0.0,
        "share of the training rows to hold out and score after every pass; calibrate and prune need some",
        0,
        1 - 2**-53,
        rule="a share from 0 up to, but not, 1",
    )
    prune: float = setting(0.0, "drop weights smaller than this in absolute value from the trained model", 0, MAX_STEP)
    seed: int = setting(
        0, "random seed; the same seed and data give the same bits for any number of threads", 0, 2**64 - 1
    )
    threads: int = setting(
        0,
        f"threads; 0 = one per core that the process may use; at most {THREADS_A_CORE} per core are started",
        0,
        4096,
    )

    def __post_init__(self) -> None:
        check_settings("train", self)
        require(self.algo in ALGORITHMS, "train.algo", self.algo, "one of " + ", ".join(ALGORITHMS))
        require(self.effort in EFFORTS, "train.effort", self.effort, "one of " + ", ".join(EFFORTS))
        require(self.favour in FAVOURS, "train.favour", self.favour, "one of " + ", ".join(FAVOURS))
        is_alone = self.algo != "hinge"
        require(is_alone or not self.tau, "train.tau", self.tau, "0 for train.algo = hinge: noise only harms it")
        require(is_alone or not self.spread, "train.spread", self.spread, "false for train.algo = hinge")
        require(self.decay in PASS_DECAYS, "train.decay", self.decay, "one of " + ", ".join(PASS_DECAYS))
        is_mean = len(self.rules) > 1
        averaging = f"1 or more for {BOTH}" if self.members == 1 else "1 or more with several train.members"
        require(not is_mean or self.average_from > 0, "train.average_from", self.average_from, averaging)

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules of all members, in the order in which they are trained."""
        return tuple(self.algo.split("+")) * self.members

    def of_member(self, index: int) -> "TrainConfig":
        """Return the settings of one member alone; -1 is the last, with which a trained model is trained further."""
        algo, alone = self.rules[index], replace(self, members=1)
        if algo == self.algo:
            return alone
        if algo == "hinge":
            return replace(alone, algo=algo, tau=0.0, spread=False)
        # Its noise finds negatives among all labels: to recall some costs npm-deps 0.7 points of P@1 (docs/tuning.md).
        return replace(alone, algo=algo, eta=self.eta * SGD_SHARE, remember=0)

    @property
    def n_passes(self) -> int:
        """Number of passes of the whole run: each member has `epochs`."""
        return self.epochs * len(self.rules)

    @property
    def has_eta(self) -> bool:
        """Does the step size mean anything to the rule? A perceptron's steps have length 1."""
        return not self.algo.startswith("perceptron")

    @property
    def n_threads(self) -> int:
        """Number of threads to start; more than THREADS_A_CORE per core would wait for each other for minutes."""
        if self.threads <= THREADS_A_CORE:
            return self.threads or n_cores()
        return min(self.threads, THREADS_A_CORE * n_cores())


@dataclass(frozen=True)
class TextConfig:
    """How a text becomes features."""

    ngrams: int = setting(1, "longest n-gram: features are runs of 1 to this many words", 1, MAX_NGRAMS)
    min_df: int = setting(
        3, "drop terms that occur in fewer documents than this; hashed features are kept", 1, MAX_COUNT
    )
    max_df: float = setting(
        0.5,
        "drop terms that occur in more than this share of documents; hashed features are kept",
        sys.float_info.min,
        1,
        rule="a share above 0 and at most 1",
    )
    weighting: str = setting(
        "tfidf", "tfidf, or bm25 = n / (n + c) for a term that occurs n times, c by the text's length (docs/text.md)"
    )
    sublinear_tf: bool = setting(True, "tfidf: count a term that occurs n times as 1 + ln(n), not n")
    lowercase: bool = setting(True, "fold upper and lower case (Unicode case folding) first")
    token_pattern: str = setting(
        "", "regular expression that matches a word, many times slower; empty = words of every script (docs/text.md)"
    )
    language: str = setting(
        "", "stem words as Snowball does for this language, e.g. de or german (extra `language`); empty = do not stem"
    )
    char_ngrams: str = setting(
        "", "runs of characters of a word that are terms beside the word, e.g. 3-5 = of 3 to 5; empty = none"
    )
    hashed_features: int = setting(
        0, "hash terms to this many columns instead of keeping a vocabulary; 0 = keep a vocabulary", 0, MAX_HASHED
    )

    def __post_init__(self) -> None:
        check_settings("text", self)
        is_name = len(self.language) <= MAX_LANGUAGE and (not self.language or self.language.isidentifier())
        require(is_name, "text.language", self.language, "a language such as de or german")
        require(self.weighting in WEIGHTINGS, "text.weighting", self.weighting, "one of " + ", ".join(WEIGHTINGS))
        shortest, longest = self.char_lengths
        is_range = not self.char_ngrams or 1 <= shortest <= longest <= MAX_NGRAMS
        require(is_range, "text.char_ngrams", self.char_ngrams, f"lengths such as 3-5, from 1 to {MAX_NGRAMS}")
        if self.token_pattern:
            for name in ("language", "char_ngrams"):
                value = getattr(self, name)
                require(not value, f"text.{name}", value, "empty beside text.token_pattern")
            if (fault := fault_of(self.token_pattern)) is not None:
                raise ConfigError(f"text.token_pattern {fault}")

    @property
    def char_lengths(self) -> tuple[int, int]:
        """Return the lengths of the shortest and the longest runs of characters; 0, 0 = none."""
        shortest, _, longest = self.char_ngrams.partition("-")
        return parse_whole(shortest) or 0, parse_whole(longest) or 0


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run, by section."""

    rows: RowsConfig = RowsConfig()
    train: TrainConfig = TrainConfig()
    text: TextConfig = TextConfig()
    # Names in [train] that somebody gave, and dense_weight if given: tuning leaves them alone.
    fixed: frozenset[str] = frozenset()

    def to_dict(self) -> dict[str, dict[str, Any]]:
        return {name: dataclasses.asdict(getattr(self, name)) for name in ("rows", "train", "text")}


def without_retired(sections: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a saved model without those that only older versions had."""
    return {
        section: {name: value for name, value in values.items() if (section, name) not in RETIRED}
        for section, values in sections.items()
    }


def from_dict(sections: dict[str, Any], source: str) -> RunConfig:
    """A RunConfig from nested dictionaries; unknown names and wrong types are errors that name `source`."""
    kinds = {name: kind for name, kind in typing.get_type_hints(RunConfig).items() if name != "fixed"}
    parts = {}
    for name, values in sections.items():
        if name not in kinds:
            raise ConfigError(f"{source}: no section {name!r}{_nearest(name, kinds)}")
        if not isinstance(values, dict):
            raise ConfigError(f"{source}: {name!r} is a section, write [{name}] or {name}.key = value")
        parts[name] = _section(kinds[name], name, values, source)
    given = {*sections.get("train", {}), *({"dense_weight"} & sections.get("rows", {}).keys())}
    return RunConfig(**parts, fixed=frozenset(given))


def _section(kind: Any, section: str, values: dict[str, Any], source: str) -> Any:
    types_of = typing.get_type_hints(kind)
    checked = {}
    for name, value in values.items():
        if name not in types_of:
            raise ConfigError(f"{source}: no setting {section}.{name}{_nearest(name, types_of)}")
        wanted = types_of[name]
        if wanted is float and type(value) is int and abs(value) < 2**1023:
            value = float(value)
        if type(value) is not wanted:
            kind_name = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[wanted]
            raise ConfigError(f"{source}: {section}.{name} must be {kind_name}, but is {value!r:.60}")
        checked[name] = value
    try:
        return kind(**checked)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"


def load(path: Path | None, values: Mapping[str, Any] | None = None, source: str = "command line") -> RunConfig:
    """Read the settings of a TOML file (None = defaults), with values by `section.key` on top."""
    sections: dict[str, Any] = {}
    if path is not None:
        try:
            sections = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:  # TOMLDecodeError, and what int() says to 5,000 digits
            raise ConfigError(f"{path}: cannot be read as TOML: {error}") from None
        from_dict(sections, str(path))  # so that an error names the file that has it
    return override(sections, values or {}, source)


def override(sections: dict[str, Any], values: Mapping[str, Any], source: str) -> RunConfig:
    """Return the settings of nested dictionaries with values by `section.key` on top."""
    sections = {name: dict(section) if isinstance(section, dict) else section for name, section in sections.items()}
    for key, value in values.items():
        section, dot, name = key.partition(".")
        if not dot:
            raise ConfigError(f"{source}: {key!r}: write section.key, for example train.eta")
        sections.setdefault(section, {})[name] = value.item() if hasattr(value, "item") else value  # numpy's numbers
    return from_dict(sections, source)


def parse_words(words: typing.Iterable[str]) -> dict[str, Any]:
    """Parse `section.key=value` words into values by `section.key`; the last word for a key counts."""
    values = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or "." not in key:
            raise ConfigError(f"{word!r}: write section.key=value, for example train.eta=0.3")
        values[key.strip()] = _parse_value(text.strip())
    return values


def _parse_value(text: str) -> Any:
    """A TOML value; what is none is text, so that --set train.algo=sgd-max needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def describe(section: type) -> dict[str, tuple[Any, str]]:
    """Name -> (default, help text) of a section's settings."""
    return {item.name: (item.default, item.metadata["help"]) for item in dataclasses.fields(section)}
