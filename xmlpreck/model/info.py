"""What model.json says of the run that made it: what others read of that has the right type, or is refused by name."""

from collections.abc import Callable
from typing import Any

# A number in a table or a picture: finite, and small enough for a float whatever its type.
_MAX_NUMBER = 1e300


class _Each:
    """A mapping of any names to values of one kind."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind


class _Maybe:
    """A value that may be missing or null."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < _MAX_NUMBER  # type: ignore[arg-type]


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_positive(value: object) -> bool:
    return _is_count(value) and value != 0


def _is_text(value: object) -> bool:
    return type(value) is str and "\0" not in value


def _is_setting(value: object) -> bool:
    return type(value) is bool or _is_text(value) or _is_number(value)


_NAMES: dict[Callable[[object], bool], str] = {
    _is_number: "a finite number",
    _is_count: "a whole number from 0",
    _is_positive: "a whole number from 1",
    _is_text: "text",
    _is_setting: "text, a number, true or false",
}

_SETTINGS = _Each(_Each(_is_setting))
_SCORES = _Each(_is_number)
_HISTORY = [
    {
        "number": _is_count,
        "surrogate": _is_number,
        "mistakes": _is_number,
        "gap": _is_number,
        "seconds": _is_number,
        "heldout": _Maybe(_SCORES),
    }
]
_TRIAL = {"settings": _Each(_is_setting), "scores": _SCORES, "value": _is_number, "kept": bool}
_TUNING = {
    "heldout_rows": _is_count,
    "budget": _is_number,
    "spent": _is_number,
    "fixed": _Each(_is_setting),
    "chosen": _Each(_is_setting),
    "rungs": [{"rows": _is_count, "passes": _is_number, "trials": [_TRIAL]}],
    "facts": _Maybe(_Each(_is_number)),
    "history": [{"passes": _is_number, "scores": _SCORES, "value": _is_number}],
}
# Where the rows were, and how they were read.
_PLACE = (
    "name", "place", "text_column", "labels_column", "label_separator", "id_column", "delimiter", "encoding", "format",
)  # fmt: skip
_INFO = {
    "config": _Maybe(_SETTINGS),
    "data": _Maybe(
        {
            "n_rows": _is_count,
            "sha256": _is_text,
            **{name: _Maybe(_is_text) for name in _PLACE},
        }
    ),
    "history": _Maybe(_HISTORY),
    "tuning": _Maybe(_TUNING),
    "pruned_at": _Maybe(_is_number),
    "embed": _Maybe(_is_text),
    "label_text": _Maybe(_Each(_is_number)),
    "calibration": _Maybe(_Each(_is_setting)),
    "label_rule": _Maybe(
        {
            "k": _is_positive,
            "min_score": _Maybe(_is_number),
            "min_labels": _is_count,
            "probabilities": bool,
            "for": _is_text,
            "average": _is_text,
            "found": _SCORES,
            "weights": _Maybe({"labels": [_is_count], "slopes": [_is_number], "shifts": [_is_number]}),
        }
    ),
    "updates": _Maybe([{}]),
    "chosen_on": _Maybe(
        [{"what": _is_text, "split": _is_text, "name": _is_text, "n_rows": _is_count, "sha256": _is_text}]
    ),
}


def check_info(info: dict[str, Any]) -> None:
    """Check what is known of `info`; a ValueError names the first field that is wrong. Other fields may be anything."""
    _check(info, _INFO, "")
    check_history(info.get("history"))
    check_tuning(info.get("tuning"))


def check_history(history: Any) -> None:
    """Check the passes of a run; None = there are none."""
    _check(history, _Maybe(_HISTORY), "history")
    _same_names("history", "heldout", [one["heldout"] for one in history or [] if one.get("heldout")])


def check_tuning(tuning: Any) -> None:
    """Check the evidence of tuning; None = there was none."""
    _check(tuning, _Maybe(_TUNING), "tuning")
    if tuning is not None:
        for place, rung in enumerate(tuning["rungs"]):
            if not rung["trials"]:
                raise ValueError(f"tuning.rungs[{place}].trials must not be empty")
        trials = [trial["scores"] for rung in tuning["rungs"] for trial in rung["trials"]]
        _same_names("tuning.rungs", "scores", trials)
        _same_names("tuning.history", "scores", [one["scores"] for one in tuning["history"]])


def _same_names(where: str, name: str, found: list[dict[str, Any]]) -> None:
    """Tables have one column for a name."""
    if any(scores.keys() != found[0].keys() for scores in found):
        raise ValueError(f"{where}: all {name} must have the same names")


def _check(value: Any, kind: Any, where: str) -> None:
    if isinstance(kind, _Maybe):
        if value is not None:
            _check(value, kind.kind, where)
    elif isinstance(kind, list):
        _demand(type(value) is list, value, where, "a list")
        for place, one in enumerate(value):
            _check(one, kind[0], f"{where}[{place}]")
    elif isinstance(kind, (dict, _Each)):
        _demand(type(value) is dict, value, where, "an object")
        kinds = kind if isinstance(kind, dict) else dict.fromkeys(value, kind.kind)
        for name, one in kinds.items():
            _check(value.get(name), one, f"{where}.{name!s:.40}".lstrip("."))
    elif kind is bool:
        _demand(type(value) is bool, value, where, "true or false")
    else:
        _demand(kind(value), value, where, _NAMES[kind])


def _demand(holds: bool, value: Any, where: str, what: str) -> None:
    if not holds:
        raise ValueError(f"{where} must be {what}, but is {value!r:.40}")
