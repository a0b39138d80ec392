"""Download one file over HTTP: resume, retry, and pass pages that ask for confirmation."""

import contextlib
import errno
import http.client
import json
import os
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

from xmlpreck.config import InputError
from xmlpreck.files.progress import Bar

TIMEOUT = 30.0  # seconds without a byte
TRIES = 6  # consecutive failures without a new byte
FIRST_WAIT, MAX_WAIT = 1.0, 30.0  # seconds between tries; each wait is twice the one before
MAX_CONFIRMS = 3
MAX_PAGE_BYTES = 2**20
MAX_BYTES = 200 * 10**9  # the largest known data set has about 10 GB

_CHUNK = 2**18
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED)


class FetchError(InputError):
    """A download that failed or cannot be used."""


class Unreachable(FetchError):
    """The server could not be reached: no network, no such host, or connection refused."""


class _BrokenTransfer(Exception):
    """A failure worth another try."""


def _check_step(before: str, after: str) -> None:
    """Refuse a redirect that leaves http(s), or goes from https to http, where anybody may answer."""
    allowed = ("https",) if urlsplit(before).scheme == "https" else ("http", "https")
    if urlsplit(after).scheme not in allowed:
        raise FetchError(f"{before}: leads to {after}, which is not {' or '.join(allowed)}: not followed")


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Checks every redirect before it is followed: urllib shows only the last."""

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        location = headers.get("location") or headers.get("uri")
        if location:
            try:
                _check_step(req.full_url, urljoin(req.full_url, location))
            except FetchError:
                fp.close()
                raise
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def download(address: str, path: Path) -> None:
    """Download a file; it appears at `path` only when it is complete."""
    part = path.with_suffix(".part")
    # Older confirmation pages set a cookie that the second request must send.
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(), _SafeRedirects())
    largest = at_start = _size(part)
    failures = 0
    while True:
        try:
            _transfer(opener, address, part)
            break
        except (_BrokenTransfer, Unreachable) as error:
            if isinstance(error, Unreachable) and largest == at_start:
                raise  # offline, and not only for a moment
            failures = 1 if _size(part) > largest else failures + 1
            largest = max(largest, _size(part))
            if failures >= TRIES:
                kept = f"; {part} keeps {_size(part):,} bytes: run the same command to resume" if _size(part) else ""
                raise FetchError(f"{address}: tried {TRIES} times: {error}{kept}") from error
            time.sleep(min(FIRST_WAIT * 2 ** (failures - 1), MAX_WAIT))
    os.replace(part, path)
    _facts_path(part).unlink(missing_ok=True)


def _facts_path(part: Path) -> Path:
    return part.with_suffix(".part.json")


def _known_facts(address: str, part: Path) -> dict[str, Any] | None:
    """Return the server's headers for the file that `part` is the beginning of; None if unknown."""
    try:
        facts = json.loads(_facts_path(part).read_text("utf-8"))
        return facts if facts["address"] == address and part.exists() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _transfer(opener: urllib.request.OpenerDirector, address: str, part: Path) -> None:
    """Make one request; return when `part` is complete."""
    known = _known_facts(address, part) or {}
    start = _size(part) if known else 0
    headers = {"User-Agent": "xmlpreck", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        # A weak ETag is not allowed here. Without any, the length tells whether it is still the same file.
        strong = next((v for v in (known["etag"], known["modified"]) if v and not v.startswith("W/")), None)
        if strong:
            headers["If-Range"] = strong
    with contextlib.closing(_open(opener, address, headers)) as response:
        first, length = _extent(response)
        facts = {
            "address": address,
            "etag": response.headers.get("ETag"),
            "modified": response.headers.get("Last-Modified"),
            "length": length,
        }
        if response.status == 200:
            start = 0  # also the answer of a server without Range
        else:
            changed = any(known.get(key) and facts[key] and known[key] != facts[key] for key in facts)
            if response.status == 416 and start and start == length and not changed:
                return  # killed between the last byte and the rename
            if response.status != 206 or first != start or changed:
                part.unlink(missing_ok=True)
                raise _BrokenTransfer("the file on the server has changed")
        if start == 0:
            part.unlink(missing_ok=True)  # before its headers are those of another file
            _facts_path(part).write_text(json.dumps(facts), "utf-8")
        _receive(response, part, start, length)


def _extent(response: Any) -> tuple[int, int | None]:
    """Return the first byte and the length of the whole file (None = unknown) from the headers."""
    try:
        if response.status == 200:
            return 0, int(response.headers["Content-Length"])
        span, _, total = response.headers["Content-Range"].removeprefix("bytes ").partition("/")
        return int(span.partition("-")[0] or 0) if span != "*" else 0, int(total)
    except (AttributeError, TypeError, ValueError):
        return 0, None


def _receive(response: Any, part: Path, start: int, length: int | None) -> None:
    shown = {"unit": "B", "unit_scale": True, "unit_divisor": 1024, "desc": part.stem, "disable": None}
    with open(part, "ab") as out, Bar(total=length, initial=start, **shown) as bar:
        size = start
        while True:
            try:
                # read1, not read: received bytes are on disk before the connection breaks.
                data = response.read1(_CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise _BrokenTransfer(f"the transfer broke off: {error or type(error).__name__}") from error
            if not data:
                break
            out.write(data)
            size += len(data)
            bar.update(len(data))
            if size > MAX_BYTES:
                raise FetchError(f"{response.url}: more than {MAX_BYTES:,} bytes: not a data set")
    if length is not None and size != length:
        raise _BrokenTransfer(f"the transfer broke off after {size:,} of {length:,} bytes")


def _open(opener: urllib.request.OpenerDirector, address: str, headers: dict[str, str]) -> Any:
    """Return the response that is the file (200, 206) or 416; anything else is an error."""
    url = address
    for _ in range(MAX_CONFIRMS + 1):
        response = _ask(opener, url, headers, address)
        kind, form = response.headers.get_content_type(), response.headers.get_content_disposition()
        if kind != "text/html" or form == "attachment" or response.status == 416:
            return response
        page = _read_page(response)
        if page.confirm is None:
            raise FetchError(f"{address}: is a page, not the file: {page.reason()}")
        action, fields = page.confirm
        url = urljoin(response.url, action)
        parts = urlsplit(url)
        query = urlencode({**dict(parse_qsl(parts.query)), **fields})
        url = parts._replace(query=query).geturl()
        _check_step(response.url, url)
    raise FetchError(f"{address}: keeps asking for confirmation: download it in a browser")


def _ask(opener: urllib.request.OpenerDirector, url: str, headers: dict[str, str], address: str) -> Any:
    host = "the server"
    try:
        host = urlsplit(url).netloc
        return opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except FetchError:
        raise
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return error
        with contextlib.closing(error):
            if error.code >= 500 or error.code in (408, 429):
                raise _BrokenTransfer(f"HTTP {error.code} {error.reason}") from error
            reason = _read_page(error).reason() if error.headers.get_content_type() == "text/html" else ""
        raise FetchError(f"{address}: HTTP {error.code} {error.reason}{': ' if reason else ''}{reason}") from error
    except urllib.error.URLError as error:
        cause = error.reason
        if isinstance(cause, ssl.SSLCertVerificationError):
            what = f"the certificate of {host} cannot be trusted: {cause.verify_message}"
            raise FetchError(f"{address}: {what}") from error
        text = (cause.strerror if isinstance(cause, OSError) else None) or str(cause)
        if isinstance(cause, socket.gaierror) or (isinstance(cause, OSError) and cause.errno in _UNREACHABLE):
            raise Unreachable(f"{host} cannot be reached: {text}") from error
        raise _BrokenTransfer(f"{host}: {text}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenTransfer(f"{host}: {error or type(error).__name__}") from error
    except ValueError as error:
        raise FetchError(f"{address}: is not an address: {error}") from error


class _Page(HTMLParser):
    """A page instead of the file: the form or link that leads to the file, or the reason why there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.confirm: tuple[str, dict[str, str]] | None = None
        self.title = ""
        self.text = ""
        self._form: tuple[str, dict[str, str]] = ("", {})
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        entries = {name: value or "" for name, value in attrs}
        name = entries.get("id", "")
        self._in_title = tag == "title"
        if tag == "form":
            self._form = (entries.get("action", ""), {})
        elif tag == "input" and entries.get("type") == "hidden":
            self._form[1][entries.get("name", "")] = entries.get("value", "")
        if tag == "form" and name in ("download-form", "downloadForm"):
            self.confirm = self._form
        elif name == "uc-download-link":
            self.confirm = (entries.get("href", ""), {}) if tag == "a" else self._form

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False

    def handle_data(self, data: str) -> None:
        self.text += data
        self.title += data if self._in_title else ""

    def reason(self) -> str:
        text = self.text.casefold()
        if "quota" in text or "too many users" in text:
            return "its download quota on the server is used up: try again in a day, or use another mirror"
        if "sign in" in text or "need access" in text or "permission" in text:
            return "the server requires signing in: the file is not public (any more)"
        return " ".join(self.title.split())[:100] or "it has no title"


def _read_page(response: Any) -> _Page:
    page = _Page()
    with contextlib.closing(response):
        try:
            data = response.read(MAX_PAGE_BYTES)
            # If the connection just ends, read returns what was received.
            if response.length and len(data) < MAX_PAGE_BYTES:
                raise _BrokenTransfer("a page broke off")
            page.feed(data.decode("utf-8", "replace"))
        except (OSError, http.client.HTTPException) as error:
            raise _BrokenTransfer(f"a page broke off: {error or type(error).__name__}") from error
    return page
