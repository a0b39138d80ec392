"""Expressions that end soon on every text: which are accepted, and that their steps grow as the text does.

The steps are counted by a small engine that goes back as Python's does, and finds the same matches.
"""

import json
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from itertools import islice
from re import _constants as codes
from re import _parser

import pytest
from helpers import ROOT
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from xmlpreck.config import ConfigError, InputError, TextConfig
from xmlpreck.config.expressions import MAX_STEPS, Endless, check_ends
from xmlpreck.data.text import TextVectorizer

SECONDS = 300  # after which a command counts as hung
ACCEPTED = [
    r"[a-zA-Z][a-zA-Z0-9-]+",
    r"(?u)\b\w\w+\b",
    r"\S+",
    r"[^\s]+",
    r"\w+(?:[-']\w+)*",
    r"#?\w+",
    r"\d+(?:[.,]\d+)*|\w+",
    ".",
    r"(\w+)",
    "",
    "-",
    r"\b(\w+)\b",
    r"\b[a-zA-Z]{3,}\b",
    r"\b[^\d\W]+\b",
    r"\b[a-z]+\b|\b\d+\b",
    r"\w{1,40}-",
    r"(?:\w+)+",
    r"(?:\w*)*",
    r"(?:a|b|ab)*",
    r"(?:a{0,10}a{0,10}z|a)*",
    r"(?i)[a-z]+",
    r"(?x) \w+  # a word",
]
UNBOUNDED, TOO_MANY = "has something behind a", "can match in too many ways at one place"
REFUSED = [
    (r"(?:\w+-)*", UNBOUNDED),
    ("a+b", UNBOUNDED),
    ("(?:a+)+b", UNBOUNDED),
    ("(?:a|a)*b", UNBOUNDED),
    ("a++b", UNBOUNDED),  # every place of the text is tried
    ("(?>a+)b", UNBOUNDED),
    ("a*?b", UNBOUNDED),
    ("(?:a+){2,}", UNBOUNDED),
    ("(?:a+){2}", UNBOUNDED),
    (r"(?a:\w+)\b", UNBOUNDED),  # another \w
    (r"\w*\b", UNBOUNDED),
    (r"\w+?\b", UNBOUNDED),
    (r"[a-z]+\b", UNBOUNDED),
    (r"\b[a-z-]+\b", UNBOUNDED),
    (r"\b[a-z]+[0-9]+\b", UNBOUNDED),
    (r"(?:\b[a-z]+\b)*", UNBOUNDED),
    (r"\w+$", UNBOUNDED),
    (r"a+(?:b*c)?", UNBOUNDED),
    (r"(a)\1", "has a reference to a group"),
    (r"(a)?(?(1)b|c)", "has a condition on a group"),
    ("(?=a)a", "has a look ahead or behind"),
    ("(?<!a)a", "has a look ahead or behind"),
    ("(?:a{0,9}){0,9}", TOO_MANY),
    ("(?:a?){50}", TOO_MANY),
    ("(?:a|a){30}", TOO_MANY),
    (r"\w{1,2000}x", TOO_MANY),
    ("(?:a{0,30}a{0,30}z|a)*", TOO_MANY),
    ("a{0,4294967294}b", TOO_MANY),
]


@pytest.mark.parametrize("pattern", ACCEPTED)
def test_accepted(pattern):
    assert TextConfig(token_pattern=pattern).token_pattern == pattern


@pytest.mark.parametrize(("pattern", "reason"), REFUSED)
def test_refused_with_the_reason(pattern, reason):
    with pytest.raises(ConfigError, match=rf"^text.token_pattern {re.escape(repr(pattern))} {reason}.*: [^\n]+$"):
        TextConfig(token_pattern=pattern)


# --- an engine that counts -----------------------------------------------------------------------------------------


class TooManySteps(Exception):
    pass


class Engine:
    """Goes back as Python's engine does, one step for each item that is tried."""

    def __init__(self, pattern, text, most):
        self.parsed, self.text, self.most, self.steps = _parser.parse(pattern), text, most, 0

    def spans(self):
        """Where a match is tried, one after the other, and where it ends; -1 = there is none."""
        start = 0
        while start <= len(self.text):
            end = next(self.ends([*self.parsed], start), -1)
            yield start, end
            start = max(end, start + 1)

    def ends(self, items, place):
        """Where the items may end, in the order in which Python tries them."""
        if not items:
            yield place
            return
        for end in self.ends_of(items[0], place):
            yield from self.ends(items[1:], end)

    def ends_of(self, item, place):
        self.steps += 1
        if self.steps > self.most:
            raise TooManySteps
        kind, given = item
        if kind is codes.SUBPATTERN:
            yield from self.ends([*given[-1]], place)
        elif kind is codes.ATOMIC_GROUP:
            yield from islice(self.ends([*given], place), 1)
        elif kind is codes.BRANCH:
            for each in given[1]:
                yield from self.ends([*each], place)
        elif kind is codes.POSSESSIVE_REPEAT:
            yield from islice(self.repeats(codes.MAX_REPEAT, *given, place, 0), 1)
        elif kind in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            yield from self.repeats(kind, *given, place, 0)
        elif self.is_at(kind, given, place) if kind is codes.AT else self.is_character(item, place):
            yield place + (kind is not codes.AT)

    def repeats(self, kind, fewest, most, body, place, times):
        if kind is codes.MIN_REPEAT and times >= fewest:
            yield place
        if most is codes.MAXREPEAT or times < most:
            for end in self.ends([*body], place):
                if end > place:
                    yield from self.repeats(kind, fewest, most, body, end, times + 1)
                elif times < fewest:  # nothing is repeated for ever
                    yield from self.repeats(kind, fewest, most, body, end, fewest)
        if kind is codes.MAX_REPEAT and times >= fewest:
            yield place

    def is_at(self, kind, given, place):
        assert given is codes.AT_BOUNDARY
        sides = [bool(re.match(r"\w", letter)) for letter in (self.text[:place][-1:], self.text[place : place + 1])]
        return sides[0] != sides[1]

    def is_character(self, item, place):
        compiled = {codes.LITERAL: lambda: re.escape(chr(item[1])), codes.ANY: lambda: "."}
        if item[0] is codes.IN:
            names = {codes.CATEGORY_WORD: r"\w", codes.CATEGORY_DIGIT: r"\d"}
            inside = "".join(
                names[value] if what is codes.CATEGORY else re.escape(chr(value)) if what is codes.LITERAL
                else f"{chr(value[0])}-{chr(value[1])}"
                for what, value in item[1]
            )  # fmt: skip
            return bool(re.match(f"[{inside}]", self.text[place : place + 1]))
        return bool(re.match(compiled[item[0]](), self.text[place : place + 1]))


def repeated(pattern):
    suffixes = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "+?", "??", "*+", "++"])
    return st.tuples(pattern, suffixes).map(lambda both: f"(?:{both[0]}){both[1]}")


PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "-", ".", r"\w", r"\d", "[ab]", "[a-c1]", r"\b", "", r"\w+", r"\w+\b", r"\b[a-c]+\b"]),
    lambda inner: st.one_of(
        repeated(inner),
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda each: f"(?:{'|'.join(each)})"),
        inner.map(lambda each: f"({each})"),
        inner.map(lambda each: f"(?>{each})"),
    ),
    max_leaves=8,
)
UNITS = ["a", "ab", "a-", "aab", "a1", "- "]


def is_accepted(pattern):
    try:
        check_ends(pattern)
    except Endless:
        return False
    return True


@settings(max_examples=150, deadline=None)
@given(PATTERNS, st.text("ab-1 ", max_size=4), st.sampled_from(UNITS), st.text("ab-1! ", max_size=3))
@example(r"(?:\w+)+", "", "a", "!")
@example(r"\b[a-c]+\b", "", "a", "1")
def test_steps_of_accepted_patterns_grow_as_the_text_does(pattern, before, unit, after):
    assume(is_accepted(pattern))
    steps = []
    for times in (8, 32):
        text = before + unit * times + after
        engine = Engine(pattern, text, MAX_STEPS * (len(text) + 1))
        for start, end in engine.spans():
            match = re.compile(pattern).match(text, start)
            # Python has rules of its own for repeats of nothing.
            assert end == (match.end() if match else -1) or re.search(r"[*+?}]\)*[*+?{]|\\b|[(|:>][|)]", pattern)
        steps.append(engine.steps)
    assert steps[1] < 6 * steps[0] + 500  # not 4 times 4


@pytest.mark.parametrize("pattern", ["a+b", "a++b", r"[a-c]+\b"])
def test_the_engine_knows_steps_that_grow_faster(pattern):
    assert not is_accepted(pattern)
    short, long = (Engine(pattern, "a" * times + "1", 10**6) for times in (8, 32))
    assert {end for engine in (short, long) for _, end in engine.spans()} == {-1}
    assert long.steps > 8 * short.steps


@pytest.mark.parametrize("pattern", ["(?:a+)+b", "(?:a|a)*b", "a*a*a*b"])
def test_the_engine_knows_a_pattern_that_does_not_end(pattern):
    assert not is_accepted(pattern)
    with pytest.raises(TooManySteps):
        list(Engine(pattern, "a" * 68, 2 * MAX_STEPS * 69).spans())


@given(st.one_of(st.text(max_size=40), st.text(r"ab|()[]{}*+?\^$.-:<=!,01wWbBdP ", max_size=60), PATTERNS))
def test_every_text_is_accepted_or_refused(pattern):
    with suppress(ConfigError):
        TextConfig(token_pattern=pattern)


# --- for real ------------------------------------------------------------------------------------------------------

FIND_ALL = """
import re, sys
letters = 100_000
for pattern in sys.argv[1:]:
    for text in ("a" * letters + "!", "a-" * letters, "a1" * letters, "-" * letters, "a" * letters + "\\u0301"):
        re.findall(pattern, text)
"""


def test_accepted_patterns_end_on_long_texts():
    """In a process that can be ended: Python's own engine cannot be interrupted by a thread."""
    subprocess.run([sys.executable, "-c", FIND_ALL, *ACCEPTED], check=True, timeout=SECONDS)


def test_a_model_with_a_hostile_pattern_is_refused(tmp_path):
    shutil.copytree(ROOT / "tests/fixtures/text-model-1", tmp_path / "m")
    path = tmp_path / "m/text.json"
    about = json.loads(path.read_text())
    about["settings"]["token_pattern"] = "(?:a+)+b"
    path.write_text(json.dumps(about))
    with pytest.raises(
        InputError, match=r"text.json: settings: text.token_pattern '\(\?:a\+\)\+b' has something behind"
    ):
        TextVectorizer.load(tmp_path / "m")
