"""Read what requests say: their bodies, fields and documents, within the limits."""

import asyncio
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from xmlpreck.api.inputs import AUTO
from xmlpreck.config import InputError
from xmlpreck.data.formats.documents import parse_object
from xmlpreck.data.formats.json_rows import JsonRow
from xmlpreck.serve.batching import Wanted
from xmlpreck.serve.problems import Problem
from xmlpreck.serve.served import Served
from xmlpreck.serve.settings import ServeLimits

MAX_FIELDS = 100  # of a form
MAX_EXPLAINED = 50  # labels of an explanation
MAX_LISTED = 100_000  # labels in `only` and `exclude`

DOCUMENTS = ("text", "texts", "documents")
WANTED = ("k", "threshold", "at_least", "only", "exclude", "probabilities", "guess_empty", "labels")
DOCUMENT = ("id", "text", "features", "values")


async def read_body(request: Request, kind: str, limits: ServeLimits) -> bytes:
    """Read the body of a request if it is of a kind (a media type), small enough, and comes in time."""
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found != kind:
        raise Problem(415, f"the body must be {kind}")
    too_long = Problem(413, f"the body must be at most {limits.max_body:,} bytes", {"Connection": "close"})
    said = request.headers.get("content-length", "")
    if said.isdecimal() and len(said) < 20 and int(said) > limits.max_body:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(limits.read_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.max_body:
                    raise too_long
    except TimeoutError:
        detail = f"the body must come within {limits.read_seconds:g} seconds"
        raise Problem(408, detail, {"Connection": "close"}) from None
    except ClientDisconnect:
        raise Problem(400, "the body is not complete", {"Connection": "close"}) from None
    return bytes(body)


async def read_object(request: Request, limits: ServeLimits, known: tuple[str, ...]) -> dict[str, Any]:
    """Read a JSON object whose fields are all known."""
    body = await read_body(request, "application/json", limits)
    try:
        fields = parse_object(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Problem(400, f"the body is not UTF-8: see byte {error.start + 1}") from None
    except ValueError as error:
        raise Problem(400, f"the body {error}".replace("each line", "it")) from None
    return only_known(fields, known)


def only_known(fields: dict[str, Any], known: tuple[str, ...], where: str = "") -> dict[str, Any]:
    for name in fields:
        if name not in known:
            raise Problem(400, f"{where}there is no field {name!r:.40}: the fields are {', '.join(known)}")
    return fields


async def read_form(request: Request, limits: ServeLimits) -> dict[str, str]:
    """Read a form; of a field that comes twice, the first."""
    body = await read_body(request, "application/x-www-form-urlencoded", limits)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except UnicodeDecodeError:
        raise Problem(400, "the form is not UTF-8") from None
    except ValueError:
        raise Problem(400, f"the form must have at most {MAX_FIELDS} fields") from None
    return dict(reversed(pairs))


def whole(fields: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON has one kind of number
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Problem(400, f"{name} must be a whole number from {low} to {high}, but is {value!r:.40}")
    return value


def written_whole(fields: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """Read a whole number that an address or a form has as text; without any, the default."""
    given = fields.get(name, "")
    digits = given.removeprefix("+")
    value = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else given or None
    return whole({name: value}, name, default, low, high)


def number(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) < 1e300 or not math.isfinite(value):
        raise Problem(400, f"{name} must be a number, but is {value!r:.40}")
    return float(value)


def flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise Problem(400, f"{name} must be true or false, but is {value!r:.40}")
    return bool(value)


def string(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise Problem(400, f"{name} must be a string, but is {value!r:.40}")
    return value


def listed(fields: Mapping[str, Any], name: str, high: int) -> list[Any] | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, list):
        raise Problem(400, f"{name} must be a list, but is {value!r:.40}")
    if len(value) > high:
        raise Problem(413, f"{name} must have at most {high:,} entries, but has {len(value):,}")
    return value


def read_labels(fields: Mapping[str, Any], name: str, served: Served) -> tuple[int, ...] | None:
    """Read labels by name or number."""
    given = listed(fields, name, MAX_LISTED)
    if given is None:
        return None
    labels = []
    for word in given:
        if not isinstance(word, str | int) or isinstance(word, bool):
            raise Problem(400, f"{name}: a label is a name or a number, but {word!r:.40} is neither")
        try:
            labels.append(served.find_label(word))
        except InputError as error:
            raise Problem(400, f"{name}: {error}") from None
    return tuple(labels)


def read_wanted(fields: Mapping[str, Any], served: Served, limits: ServeLimits) -> Wanted:
    """Read which labels are wanted, and check that the model has them."""
    k = whole(fields, "k", 5, 1, limits.max_labels)
    auto = string(fields, "labels")
    if auto not in (None, AUTO):
        raise Problem(400, f"labels must be auto, but is {auto!r:.40}: give a number by k")
    if auto and any(fields.get(name) is not None for name in ("k", "threshold", "at_least")):
        raise Problem(400, "labels auto chooses the number of labels: leave out k, threshold and at_least")
    wanted = Wanted(
        k=k,
        threshold=number(fields, "threshold"),
        at_least=whole(fields, "at_least", 0, 0, k),
        only=read_labels(fields, "only", served),
        exclude=read_labels(fields, "exclude", served),
        probabilities=flag(fields, "probabilities"),
        guess_empty=flag(fields, "guess_empty"),
        auto=auto == AUTO,
    )
    if wanted.probabilities and served.model.calibration is None:
        raise Problem(400, "the model has no probabilities: it is not calibrated")
    try:
        wanted.choice(served.model)
    except InputError as error:
        raise Problem(400, str(error)) from None
    return wanted


def read_documents(fields: Mapping[str, Any], served: Served, limits: ServeLimits) -> list[JsonRow]:
    """Read the documents of a request: a `text`, a list of `texts`, or of `documents` with texts or features."""
    given = [name for name in DOCUMENTS if fields.get(name) is not None]
    if len(given) != 1:
        raise Problem(400, "give one of text, texts and documents")
    if given == ["text"]:
        text = string(fields, "text") or ""
        return [read_document({"text": text}, 0, served, "")]
    entries = listed(fields, given[0], limits.max_documents)
    found = []
    for place, entry in enumerate(entries or []):
        where = f"{given[0]}[{place}]: "
        if given == ["texts"]:
            if not isinstance(entry, str):
                raise Problem(400, f"{where}must be a string, but is {entry!r:.40}")
            entry = {"text": entry}
        if not isinstance(entry, dict):
            raise Problem(400, f"{where}must be an object, but is {entry!r:.40}")
        found.append(read_document(entry, place, served, where))
    return found


def read_document(entry: dict[str, Any], place: int, served: Served, where: str) -> JsonRow:
    """Read one document; its id, else its place."""
    only_known(entry, DOCUMENT, where)
    if "text" in entry and (not isinstance(entry["text"], str) or "features" in entry):
        raise Problem(400, f"{where}needs a text, which is a string, or features")
    try:
        return served.parser.parse_fields(entry, place)
    except (ValueError, RecursionError) as error:
        raise Problem(400, f"{where}{error}") from None
