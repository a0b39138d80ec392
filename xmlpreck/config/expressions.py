"""Regular expressions that end soon on every text: whoever wrote them, and whoever wrote the text.

Python's engine goes back and tries again whenever something fails, so `(a+)+b` takes for ever on a row of a's. The time
is at most a constant for each letter where nothing behind an unbounded repeat can fail: then nothing in it is tried
again. What stands before it has a bounded number of ways to match, and these are counted.
"""

import re
from collections.abc import Sequence
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

MAX_PATTERN = 300
MAX_STEPS = 1000  # at one place of a text
_MANY = MAX_STEPS + 1
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_CHARACTERS = (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN)
_WORD_CHARACTER = (codes.IN, [(codes.CATEGORY, codes.CATEGORY_WORD)])
_WORD_EDGE = (codes.AT, codes.AT_BOUNDARY)
_REFUSED = {
    codes.GROUPREF: "a reference to a group",
    codes.GROUPREF_EXISTS: "a condition on a group",
    codes.ASSERT: "a look ahead or behind",
    codes.ASSERT_NOT: "a look ahead or behind",
}

Item = tuple[Any, Any]  # an operation and its arguments, as Python's own parser gives them


class Endless(ValueError):
    """An expression that may take longer than a constant for each letter; says why, and how to write it."""


class _Cost(NamedTuple):
    """How an expression may be tried at one place: in how many ways it can match, and the steps of all of them."""

    ways: int
    steps: int


def fault_of(pattern: str) -> str | None:
    """Say what is wrong with an expression that is to match words; None = nothing."""
    if len(pattern) > MAX_PATTERN:
        return f"must be of at most {MAX_PATTERN} letters, but is {pattern[:60]!r:.60}"
    try:
        n_groups = re.compile(pattern).groups
        check_ends(pattern)  # models come from anywhere, and so do texts
    except Endless as error:
        return f"{pattern!r:.60} {error}"
    except (re.error, OverflowError, RecursionError) as error:
        return f"must be a regular expression, but is {pattern!r:.60}: {error}"
    return None if n_groups <= 1 else f"must be an expression with at most one (group), but is {pattern!r:.60}"


def check_ends(pattern: str) -> None:
    """Raise Endless if the time to find all matches may grow faster than the text; re.error if it is no expression."""
    if _cost_of(_parser.parse(pattern), False, True).steps >= _MANY:
        raise Endless(
            f"can match in too many ways at one place: use fewer or smaller {{n,m}}, at most {MAX_STEPS} steps"
        )


def _cost_of(sequence: Sequence[Item], may_fail: bool, is_outside: bool, in_word: bool = False) -> _Cost:
    r"""Count the ways of a sequence.

    `may_fail`: what comes behind it may; `is_outside`: it is in no repeat; `in_word`: before it are a \b and, since
    then, characters of a word only.
    """
    items = _without_groups(sequence)
    # Behind items[i]: may anything fail?
    fails = [may_fail]
    for item in reversed(items):
        fails.append(fails[-1] or _can_fail(item))
    fails = fails[-2::-1]
    ways, steps = 1, 0
    for i, item in enumerate(items):
        next_fails = fails[i]
        if next_fails and items[i + 1 : i + 2] == [_WORD_EDGE] and _ends_at_edge(item, in_word):
            next_fails = fails[i + 1]
        cost = _item_cost(item, next_fails, is_outside, in_word)
        steps = min(steps + ways * cost.steps, _MANY)
        ways = min(ways * cost.ways, _MANY)
        in_word = is_outside and (item == _WORD_EDGE or (in_word and _is_in_word(item)))
    return _Cost(ways, steps)


def _item_cost(item: Item, may_fail: bool, is_outside: bool, in_word: bool) -> _Cost:
    kind, given = item
    if kind in _REFUSED:
        raise Endless(f"has {_REFUSED[kind]}: leave it out")
    if kind in _CHARACTERS or kind is codes.AT:
        return _Cost(1, 1)
    if kind in (codes.SUBPATTERN, codes.ATOMIC_GROUP):
        return _cost_of(given[-1] if kind is codes.SUBPATTERN else given, may_fail, is_outside)
    if kind is codes.BRANCH:
        costs = [_cost_of(each, may_fail, is_outside, in_word) for each in given[1]]
        return _Cost(min(sum(cost.ways for cost in costs), _MANY), min(1 + sum(cost.steps for cost in costs), _MANY))
    if kind in _REPEATS:
        fewest, most, body = given
        if most is codes.MAXREPEAT:
            if may_fail:
                raise Endless(
                    r"has something behind a +, * or {n,} that may not be there, and then all of it is tried again: "
                    r"let the repeat be last, as in \w+(?:-\w+)*, or bound it, as in \w{1,40}-"
                )
            most = max(fewest, 1)
        again = fewest > 1 and any(map(_can_fail, body))
        return _repeated(_cost_of(body, may_fail or again, False), fewest, most)
    raise Endless(f"has {str(kind).lower()}, whose time is not known: leave it out")


def _repeated(body: _Cost, fewest: int, most: int) -> _Cost:
    """Count the ways of `body` one time after the other, from the fewest to the most times."""
    if body.ways == 1:
        return _Cost(min(most - fewest + 1, _MANY), min(most * body.steps + 1, _MANY))
    ways = steps = 0
    before = 1  # ways of the times so far
    for times in range(min(most, _MANY) + 1):
        ways += before if times >= fewest else 0
        steps += before * body.steps if times < most else 0
        before = min(before * body.ways, _MANY)
    return _Cost(min(max(ways, 1), _MANY), min(steps + 1, _MANY))


def _without_groups(sequence: Sequence[Item]) -> list[Item]:
    """Put what is in a group in its place; one that changes flags stays, since \\w and \\b there are others."""
    items: list[Item] = []
    for kind, given in sequence:
        if kind is codes.SUBPATTERN and not given[1] and not given[2]:
            items += _without_groups(given[3])
        else:
            items.append((kind, given))
    return items


def _can_fail(item: Item) -> bool:
    """Tell whether there is a place in some text at which an item has no match at all."""
    kind, given = item
    if kind in _REPEATS:
        return given[0] > 0 and any(map(_can_fail, given[2]))
    if kind in (codes.SUBPATTERN, codes.ATOMIC_GROUP):
        return any(map(_can_fail, given[-1] if kind is codes.SUBPATTERN else given))
    if kind is codes.BRANCH:
        return all(any(map(_can_fail, each)) for each in given[1])
    return True


def _ends_at_edge(item: Item, in_word: bool) -> bool:
    r"""Tell whether a \b behind an unbounded repeat costs nothing more than the repeat.

    Behind all \w that there are it cannot fail. Behind others that are within \w it may, and they are tried again: once
    for a word, if only letters of it stand between them and a \b before, since then no other place of it is tried.
    """
    kind, given = item
    if kind not in (codes.MAX_REPEAT, codes.POSSESSIVE_REPEAT) or given[1] is not codes.MAXREPEAT or given[0] < 1:
        return False
    return [*given[2]] == [_WORD_CHARACTER] or (in_word and _is_in_word(item))


def _is_in_word(item: Item) -> bool:
    r"""Tell whether an item is characters of \w and nothing else, whatever the flags."""
    kind, given = item
    if kind in _REPEATS:
        return len(given[2]) == 1 and given[2][0][0] in _CHARACTERS and _is_in_word(given[2][0])
    if kind is codes.LITERAL:
        return _is_plain(given)
    if kind is not codes.IN:
        return False
    if given[0][0] is codes.NEGATE:
        return (codes.CATEGORY, codes.CATEGORY_NOT_WORD) in given
    return all(
        (what is codes.LITERAL and _is_plain(value))
        or (what is codes.RANGE and _is_plain(value[0]) and all(map(_is_plain, range(value[0], value[1] + 1))))
        or (what is codes.CATEGORY and value in (codes.CATEGORY_WORD, codes.CATEGORY_DIGIT))
        for what, value in given
    )


def _is_plain(code: int) -> bool:
    return code < 128 and (chr(code).isalnum() or code == ord("_"))
