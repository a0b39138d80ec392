"""Fetching, from a server of our own on 127.0.0.1: broken transfers, pages, bad archives, killed processes."""

import errno
import gzip
import hashlib
import http.server
import io
import os
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
import zipfile
from pathlib import Path

import pytest

from xmlpreck.config import InputError
from xmlpreck.data import fetch
from xmlpreck.data.fetch import (
    Archive,
    FetchError,
    Mirror,
    Unreachable,
    archives,
    download_path,
    fetch_mirror,
    transfer,
)

ROOT = Path(__file__).resolve().parents[1]
TRAIN, TEST = b"2 3 2\n0 0:1\n1 2:1\n", b"1 3 2\n0,1 1:1\n"
# Bytes that do not pack, so that transfers have a known length.
NOISE = b"".join(hashlib.sha256(bytes([i % 256, i // 256])).digest() for i in range(16_384))


class Server(http.server.ThreadingHTTPServer):
    """Serves `body`, in the way that the fields say, and counts what it sent."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = b""
        self.etag = '"one"'
        self.knows_range = self.obeys_if_range = True
        self.later = None  # body and ETag from the second request on
        self.cuts = []  # bytes after which an answer is cut off, one for each request
        self.statuses = []  # errors to answer with first
        self.pages = {}  # path -> HTML
        self.redirects, self.redirect_status = {}, 302  # path -> another address
        self.scheme = "http"
        self.pause = 0.0  # seconds before the second half
        self.piece = 2**16
        self.rest = 0.0  # seconds between pieces
        self.sent = 0
        self.requests = []
        self.released = threading.Event()

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        pass  # clients that go away are the subject here


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        server = self.server
        server.requests.append((self.path, self.headers.get("Range")))
        if server.statuses:
            self.answer(server.statuses.pop(0), b"", {})
        elif self.path in server.redirects:
            self.answer(server.redirect_status, b"", {"Location": server.redirects[self.path]})
        elif self.path in server.pages:
            self.answer(200, server.pages[self.path].encode(), {"Content-Type": "text/html; charset=utf-8"})
        else:
            self.file()

    def file(self):
        server, span = self.server, self.headers.get("Range")
        if server.later and len(server.requests) > 1:
            server.body, server.etag = server.later
        body = server.body
        headers = {"ETag": server.etag} if server.etag else {}
        same = self.headers.get("If-Range") in (None, server.etag) or not server.obeys_if_range
        if span is None or not server.knows_range or not same:
            return self.answer(200, body, headers)
        start = int(span.removeprefix("bytes=").removesuffix("-"))
        if start >= len(body):
            return self.answer(416, b"", {"Content-Range": f"bytes */{len(body)}"})
        headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        return self.answer(206, body[start:], headers)

    def answer(self, status, body, headers):
        server = self.server
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(len(body)),
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts and "Content-Type" not in headers and body else None
        for place in range(0, len(body[:cut]), server.piece):
            if server.pause and place >= len(body) // 2:
                server.released.wait(server.pause)
            piece = body[:cut][place : place + server.piece]
            server.sent += len(piece)  # before the client can have it
            self.wfile.write(piece)
            self.wfile.flush()
            time.sleep(server.rest)
        if cut is not None:
            self.close_connection = True


@pytest.fixture
def server():
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield made
    made.released.set()
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(transfer, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(transfer, "TRIES", 3)


def zipped(entries, method=zipfile.ZIP_DEFLATED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return stream.getvalue()


def tarred(*members, mode="w:gz"):
    """A tar of (TarInfo, bytes) or (name, bytes)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for info, data in members:
            info = tarfile.TarInfo(info) if isinstance(info, str) else info
            info.size = len(data) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


GOOD_ZIP = zipped({"Tiny/tiny_train.txt": TRAIN, "Tiny/tiny_TEST.txt": TEST, "Tiny/readme.txt": b"hello"})
GOOD_TAR = [("Tiny/tiny_train.txt", TRAIN), ("tiny_test.txt", TEST), ("./readme", b"hello")]
FILES = {"train.txt": "Tiny/tiny_train.txt", "test.txt": "tiny_test.txt"}


def mirror_of(server, sha256="unverified", files=FILES, path="/tiny.zip", **more):
    return Mirror("a test", (Archive(files=files, sha256=sha256, url=server.url + path, **more),))


def check_tiny(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["test.txt", "train.txt"]
    assert (folder / "train.txt").read_bytes() == TRAIN
    assert (folder / "test.txt").read_bytes() == TEST


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


# --- whole fetches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [GOOD_ZIP, tarred(*GOOD_TAR), tarred(*GOOD_TAR, mode="w")],
    ids=["zip", "tar.gz", "tar"],
)
def test_fetch_puts_the_named_files_and_nothing_else(server, tmp_path, capsys, body):
    server.body = body
    target = tmp_path / "data" / "tiny"
    fetch_mirror(mirror_of(server), target)
    check_tiny(target)
    assert leftovers(target.parent) == ["tiny"]
    words = capsys.readouterr().err
    assert "unverified: no checksum is known" in words
    assert hashlib.sha256(body).hexdigest() in words
    fetch_mirror(mirror_of(server), target)  # it is there: nobody is asked
    assert len(server.requests) == 1


def test_known_checksum_is_quiet(server, tmp_path, capsys):
    server.body = GOOD_ZIP
    fetch_mirror(mirror_of(server, hashlib.sha256(GOOD_ZIP).hexdigest()), tmp_path / "tiny")
    check_tiny(tmp_path / "tiny")
    assert "unverified" not in capsys.readouterr().err


def test_wrong_checksum_names_both_and_keeps_the_file(server, tmp_path):
    server.body = GOOD_ZIP
    with pytest.raises(
        FetchError, match=f"sha256 is {hashlib.sha256(GOOD_ZIP).hexdigest()}, but must be {'0' * 64}"
    ) as error:
        fetch_mirror(mirror_of(server, "0" * 64), tmp_path / "tiny")
    (bad,) = tmp_path.glob("*.bad")
    assert bad.read_bytes() == GOOD_ZIP
    assert str(bad) in str(error.value)
    assert not (tmp_path / "tiny").exists()
    fetch_mirror(mirror_of(server, hashlib.sha256(GOOD_ZIP).hexdigest()), tmp_path / "tiny")
    check_tiny(tmp_path / "tiny")


def test_several_plain_files_make_one_data_set(server, tmp_path):
    server.body = TRAIN
    archives = tuple(
        Archive(files={f"{split}.txt": "any"}, sha256="unverified", url=f"{server.url}/{split}.txt")
        for split in ("train", "test")
    )
    fetch_mirror(Mirror("two files", archives), tmp_path / "tiny")
    assert leftovers(tmp_path / "tiny") == ["test.txt", "train.txt"]
    server.body = gzip.compress(TEST)
    fetch_mirror(Mirror("packed", archives[:1]), tmp_path / "gz")
    assert (tmp_path / "gz" / "train.txt").read_bytes() == TEST


def test_optional_files_and_a_folder_that_is_there(server, tmp_path):
    server.body = GOOD_ZIP
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "labels.txt").write_text("mine")
    fetch_mirror(mirror_of(server, optional={"about.txt": "README.txt", "filter.txt": "filter.txt"}), tmp_path / "tiny")
    assert leftovers(tmp_path / "tiny") == ["about.txt", "labels.txt", "test.txt", "train.txt"]
    assert (tmp_path / "tiny" / "labels.txt").read_text() == "mine"


def test_an_archive_put_there_by_hand_needs_no_server(tmp_path):
    mirror = Mirror("", (Archive(files=FILES, sha256="unverified", url="http://127.0.0.1:9/none"),))
    download_path(mirror.archives[0], tmp_path / "tiny").write_bytes(GOOD_ZIP)
    fetch_mirror(mirror, tmp_path / "tiny")
    check_tiny(tmp_path / "tiny")


def test_what_the_check_refuses_never_gets_the_name(server, tmp_path):
    server.body = GOOD_ZIP

    def refuse(folder):
        assert (folder / "train.txt").read_bytes() == TRAIN
        raise InputError("other data")

    with pytest.raises(FetchError, match=r"^other data; the download is kept as .*bad$"):
        fetch_mirror(mirror_of(server), tmp_path / "tiny", refuse)
    assert [name for name in leftovers(tmp_path) if not name.endswith(".bad")] == []


@pytest.mark.parametrize(
    ("files", "message"),
    [({"train.txt": "nope.txt"}, "0 files match 'nope.txt'"), ({"train.txt": "*.txt"}, "3 files")],
)
def test_files_that_are_not_in_the_archive(server, tmp_path, files, message):
    server.body = GOOD_ZIP
    with pytest.raises(
        FetchError, match=rf"{message}.*it holds Tiny/readme.txt, Tiny/tiny_TEST.txt, Tiny/tiny_train.txt"
    ):
        fetch_mirror(mirror_of(server, files=files), tmp_path / "tiny")
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "either url or drive"),
        ({"url": "http://x", "drive": "1"}, "either url or drive"),
        ({"url": "http://x", "sha256": "abc"}, "64 digits"),
        ({"url": "http://x", "files": {}}, "files must be"),
        ({"url": "http://x", "files": {"../train.txt": "a"}}, "without folders"),
    ],
)
def test_archives_check_themselves(entries, message):
    with pytest.raises(ValueError, match=message):
        Archive(**{"files": {"a": "b"}, "sha256": "unverified", **entries})


# --- transfers -------------------------------------------------------------------------------------------------


def get(server, folder, path="/file"):
    transfer.download(server.url + path, folder / "x.download")
    return (folder / "x.download").read_bytes()


def test_resumes_where_it_was_cut(server, tmp_path):
    server.body, server.cuts = NOISE, [200_000, 100_000]
    assert get(server, tmp_path) == NOISE
    assert [span for _, span in server.requests] == [None, "bytes=200000-", "bytes=300000-"]
    assert server.sent == len(NOISE)
    assert leftovers(tmp_path) == ["x.download"]


def test_resumes_without_etag_by_length(server, tmp_path):
    server.body, server.cuts, server.etag = NOISE, [200_000], None
    assert get(server, tmp_path) == NOISE
    assert server.sent == len(NOISE)


def test_server_without_range_starts_again(server, tmp_path):
    server.body, server.cuts, server.knows_range = NOISE, [200_000], False
    assert get(server, tmp_path) == NOISE
    assert server.sent == 200_000 + len(NOISE)


@pytest.mark.parametrize("obeys", [True, False], ids=["If-Range", "only the facts differ"])
@pytest.mark.parametrize("later", [(NOISE[::-1], '"two"'), (NOISE[:-9], None)], ids=["ETag", "length"])
def test_file_changed_between_attempts(server, tmp_path, obeys, later):
    server.body, server.cuts, server.later, server.obeys_if_range = NOISE, [200_000], later, obeys
    assert get(server, tmp_path) == later[0]
    assert leftovers(tmp_path) == ["x.download"]


def test_part_of_another_address_is_not_gone_on_with(server, tmp_path):
    server.body, server.cuts = NOISE, [200_000, 0, 0, 0]
    with pytest.raises(FetchError, match=r"tried 3 times: .*x.part keeps 200,000 bytes: run the same command"):
        get(server, tmp_path)
    assert get(server, tmp_path, "/other") == NOISE
    assert server.requests[-1] == ("/other", None)


def test_whole_part_of_a_killed_process(server, tmp_path):
    server.body, server.cuts = NOISE, [200_000, 0, 0, 0]
    with pytest.raises(FetchError):
        get(server, tmp_path)
    (tmp_path / "x.part").write_bytes(NOISE)
    server.sent = 0
    assert get(server, tmp_path) == NOISE
    assert server.sent == 0
    # One that is longer than the file is not its beginning.
    (tmp_path / "x.download").unlink()
    server.cuts = [200_000, 0, 0, 0]
    with pytest.raises(FetchError):
        get(server, tmp_path)
    (tmp_path / "x.part").write_bytes(NOISE + b"more")
    assert get(server, tmp_path) == NOISE


def test_errors_of_the_moment_are_tried_again(server, tmp_path):
    server.body, server.statuses = NOISE, [503, 429]
    assert get(server, tmp_path) == NOISE
    server.statuses = [500] * 3
    (tmp_path / "x.download").unlink()
    with pytest.raises(FetchError, match=r"tried 3 times: HTTP 500 Internal Server Error$"):
        get(server, tmp_path)


def test_not_found_is_not_tried_again(server, tmp_path):
    server.statuses = [404]
    with pytest.raises(FetchError, match=r"/file: HTTP 404 Not Found$"):
        get(server, tmp_path)
    assert len(server.requests) == 1


def test_slow_server(server, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "TIMEOUT", 0.2)
    server.body, server.pause = NOISE, 20.0
    began = time.monotonic()
    # Each try gets half of what is left, until nothing new comes in time; what came is kept.
    monkeypatch.setattr(transfer, "TRIES", 2)
    server.knows_range = False
    with pytest.raises(FetchError, match="tried 2 times: the transfer broke off: timed out"):
        get(server, tmp_path)
    assert time.monotonic() - began < 5
    server.pause, server.knows_range = 0, True
    assert get(server, tmp_path) == NOISE


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/x", "http://no-such-host.invalid/x"])
def test_nobody_there_is_told_at_once(tmp_path, address):
    with pytest.raises(Unreachable, match=r"^(127.0.0.1:9|no-such-host.invalid) cannot be reached: \S.*$"):
        transfer.download(address, tmp_path / "x.download")
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("address", ["nonsense", "http://[x/"])
def test_addresses_that_are_none(tmp_path, address):
    with pytest.raises(FetchError, match="is not an address"):
        transfer.download(address, tmp_path / "x.download")


def test_endless_file(server, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "MAX_BYTES", 1000)
    server.body = NOISE
    with pytest.raises(FetchError, match="more than 1,000 bytes"):
        get(server, tmp_path)


# --- pages instead of the file ---------------------------------------------------------------------------------

FORM = """<html><head><title>Google Drive - Virus scan warning</title></head><body>
<form action="/search"><input type=hidden name=q value=no></form>
<form id="download-form" action="{url}/download" method="get"><input type="submit" value="Download anyway">
<input type="hidden" name="id" value="1x"><input type="hidden" name="confirm" value="t&amp;a"></form></body></html>"""
BUTTON = """<form id="other" action="/download?id=1x&amp;confirm=t%26a" method="post">
<input type=submit id="uc-download-link"></form>"""
LINK = '<p>Too big to scan: <a id="uc-download-link" href="/download?id=1x&amp;confirm=t%26a">Download anyway</a>'


@pytest.mark.parametrize("page", [FORM, BUTTON, LINK], ids=["form", "button", "link"])
def test_confirm_pages_are_confirmed(server, tmp_path, monkeypatch, page):
    monkeypatch.setattr(fetch, "DRIVE_ADDRESS", server.url + "/uc?export=download&id={drive}")
    archive = Archive(files=FILES, sha256="unverified", drive="1x", resourcekey="0-k")
    asked = "/uc?export=download&id=1x&resourcekey=0-k"
    server.pages = {asked: page.replace("{url}", server.url)}
    server.body, server.cuts = GOOD_ZIP, [100]
    fetch_mirror(Mirror("drive", (archive,)), tmp_path / "tiny")
    check_tiny(tmp_path / "tiny")
    confirmed = "/download?id=1x&confirm=t%26a"
    # After the cut, the page comes first again, and the rest of the file after it.
    assert server.requests == [(asked, None), (confirmed, None), (asked, "bytes=100-"), (confirmed, "bytes=100-")]


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("<title>Google Drive - Quota exceeded</title>", "download quota on the server is used up: try again in a day"),
        ("<p>Too many users have viewed or downloaded this file recently", "download quota"),
        ("<title>Google Drive: Sign in</title>", "requires signing in: the file is not public"),
        ("<title>Some\nother   page</title>", "a page, not the file: Some other page$"),
        ("<p>nothing", "a page, not the file: it has no title$"),
        (
            LINK.replace("/download?", "file:///etc/passwd?"),
            "leads to file:.*, which is not http or https: not followed",
        ),
        (LINK.replace("/download?id=1x&amp;confirm=t%26a", "/file"), "keeps asking for confirmation"),
    ],
)
def test_other_pages_are_told(server, tmp_path, page, message):
    server.pages = {"/file": page}
    with pytest.raises(FetchError, match=message) as error:
        get(server, tmp_path)
    assert "\n" not in str(error.value)
    assert leftovers(tmp_path) == []


def test_page_that_breaks_off_is_asked_for_again(server, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "MAX_CONFIRMS", 0)
    server.pages = {"/file": LINK}
    whole = Handler.answer

    def cut_once(self, status, body, headers):
        monkeypatch.setattr(Handler, "answer", whole)
        self.close_connection = True
        whole(self, status, body[:50], {**headers, "Content-Length": str(len(body))})

    monkeypatch.setattr(Handler, "answer", cut_once)
    with pytest.raises(FetchError, match="keeps asking for confirmation"):
        get(server, tmp_path)
    assert len(server.requests) == 2


@pytest.fixture
def safe_server(tmp_path_factory, monkeypatch):
    """A server behind TLS, whose certificate this process trusts."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command, for a certificate")
    folder = tmp_path_factory.mktemp("tls")
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", *words, "-keyout", "key.pem", "-out", "cert.pem"], cwd=folder, check=True, capture_output=True
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "cert.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    made = Server()
    made.socket = context.wrap_socket(made.socket, server_side=True)
    made.scheme = "https"
    threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def test_redirects_within_https_are_followed(safe_server, tmp_path):
    safe_server.redirects = {"/file": "/there", "/there": safe_server.url + "/at-last"}
    safe_server.body = NOISE
    assert get(safe_server, tmp_path) == NOISE
    assert [path for path, _ in safe_server.requests] == ["/file", "/there", "/at-last"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_leaves_https(server, safe_server, tmp_path, status):
    """Not even for one step: the plain server leads back to the safe one."""
    safe_server.redirect_status = status
    safe_server.redirects = {"/file": "/next", "/next": server.url + "/plain"}
    server.redirects = {"/plain": safe_server.url + "/back"}
    safe_server.body = NOISE
    said = f"^{safe_server.url}/next: leads to {server.url}/plain, which is not https: not followed$"
    with pytest.raises(FetchError, match=said):
        get(safe_server, tmp_path)
    assert server.requests == []
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"])
def test_no_redirect_leaves_the_web(server, safe_server, tmp_path, place):
    for each, allowed in ((server, "http or https"), (safe_server, "https")):
        each.redirects = {"/file": place}
        said = f"^{each.url}/file: leads to {place}, which is not {allowed}: not followed$"
        with pytest.raises(FetchError, match=said):
            get(each, tmp_path)


def test_no_confirm_page_leaves_https(server, safe_server, tmp_path):
    safe_server.pages = {"/file": LINK.replace("/download?", f"{server.url}/download?")}
    with pytest.raises(FetchError, match=r"leads to http://.*/download\?.*, which is not https: not followed"):
        get(safe_server, tmp_path)
    assert server.requests == []


def test_http_may_become_https(server, safe_server, tmp_path):
    server.redirects, safe_server.body = {"/file": safe_server.url + "/file"}, NOISE
    assert get(server, tmp_path) == NOISE


def test_certificates_that_cannot_be_trusted(tmp_path, monkeypatch):
    class Opener:
        def open(self, *_, **__):
            error = ssl.SSLCertVerificationError("self-signed")
            error.verify_message = "self-signed certificate"
            raise urllib.error.URLError(error)

    monkeypatch.setattr(transfer.urllib.request, "build_opener", lambda *_: Opener())
    with pytest.raises(FetchError, match="certificate of here cannot be trusted: self-signed"):
        transfer.download("https://here/x", tmp_path / "x.download")


# --- archives --------------------------------------------------------------------------------------------------


def link(kind, name="Tiny/tiny_train.txt", to="/etc/passwd"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


def zip_link():
    info = zipfile.ZipInfo("Tiny/link")
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return info


def sparse():
    """A GNU sparse file of 1 GB, of which no byte is in the archive."""
    info = tarfile.TarInfo("Tiny/sparse")
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:410] = b"%011o\0%011o\0" % (10**9, 0)
    header[483:495] = b"%011o\0" % 10**9
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


BAD_ARCHIVES = {
    "zip, above": (zipped({"../evil.txt": b"x"}), "'../evil.txt', which is outside"),
    "zip, absolute": (zipped({"/evil.txt": b"x"}), "'/evil.txt', which is outside"),
    "zip, backslashes": (zipped({"a\\..\\..\\evil.txt": b"x"}), "which is outside"),
    "zip, drive letter": (zipped({"C:/evil.txt": b"x"}), "which is outside"),
    "zip, symlink": (zipped({zip_link(): b"/etc/passwd"}), "'Tiny/link' is a link"),
    "tar, above": (tarred(("../evil.txt", b"x")), "'../evil.txt', which is outside"),
    "tar, absolute": (tarred(("/evil.txt", b"x"), mode="w"), "'/evil.txt', which is outside"),
    "tar, symlink": (tarred((link(tarfile.SYMTYPE), b"")), "is a link"),
    "tar, hard link": (tarred((link(tarfile.LNKTYPE), b"")), "is a link"),
    "tar, pipe": (tarred((link(tarfile.FIFOTYPE), b"")), "is a link, a device"),
    "tar, device": (tarred((link(tarfile.CHRTYPE), b"")), "is a link, a device"),
    "tar, sparse": (sparse(), "sparse"),
    "tar, through a link": (
        tarred((link(tarfile.SYMTYPE, "Tiny", "/tmp"), b""), ("Tiny/evil.txt", b"x")),
        "'Tiny' is a link",
    ),
    "tar, twice": (tarred(("a", b"x"), ("a", b"y")), "two files have the same name"),
    "tar, file as folder": (tarred(("a", b"x"), ("a/b", b"y")), "two files have the same name"),
    "zip, cut": (GOOD_ZIP[:-40], "damaged"),
    "zip, flipped": (GOOD_ZIP.replace(GOOD_ZIP[60:70], b"0123456789"), "damaged"),
    "tar.gz, cut": (tarred(("a", NOISE))[:200_000], "damaged: Compressed file ended"),
    "tar, cut": (tarred(("a", NOISE), mode="w")[:200_000], "damaged: unexpected end"),
    "gz, cut": (gzip.compress(NOISE)[:200_000], "damaged: Compressed file ended"),
    "gz, nonsense": (b"\x1f\x8bnonsense" * 9, "damaged"),
}


@pytest.mark.parametrize("name", BAD_ARCHIVES)
def test_bad_archives_are_refused(server, tmp_path, name):
    server.body, message = BAD_ARCHIVES[name]
    folder = tmp_path / "a" / "b"
    with pytest.raises(FetchError, match=message) as error:
        fetch_mirror(mirror_of(server), folder / "tiny")
    assert "\n" not in str(error.value)
    assert [name for name in leftovers(folder) if not name.endswith(".bad")] == []
    assert sorted(path.name for path in tmp_path.rglob("*") if "evil" in path.name) == []
    server.body = GOOD_ZIP  # and the next time it is asked for again
    fetch_mirror(mirror_of(server), folder / "tiny")
    check_tiny(folder / "tiny")


def header_that_lies():
    """A zip that says its 20 MB are 10 bytes."""
    body = bytearray(zipped({"a": bytes(20_000_000)}))
    where = body.index(b"PK\1\2")
    body[where + 24 : where + 28] = (10).to_bytes(4, "little")
    body[22:26] = (10).to_bytes(4, "little")
    return bytes(body)


BOMBS = {
    "zip": lambda: zipped({"a": bytes(20_000_000)}),
    "zip of many": lambda: zipped({str(i): bytes(2_000_000) for i in range(10)}),
    "tar.gz": lambda: tarred(("a", bytes(20_000_000))),
    "gz": lambda: gzip.compress(bytes(20_000_000)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_while_they_unpack(tmp_path, monkeypatch, name):
    (tmp_path / "bomb").write_bytes(BOMBS[name]())
    archives.unpack(tmp_path / "bomb", tmp_path / "allowed")  # packs well, but is small
    monkeypatch.setattr(archives, "RATIO_COUNTS_FROM", 5_000_000)
    with pytest.raises(FetchError, match=r"bytes unpack to more than 5,.* a bomb"):
        archives.unpack(tmp_path / "bomb", tmp_path / "ratio")
    monkeypatch.setattr(archives, "MAX_RATIO", 10**6)
    monkeypatch.setattr(archives, "MAX_BYTES", 10_000_000)
    with pytest.raises(FetchError, match=r"bytes unpack to more than 10,.* a bomb"):
        archives.unpack(tmp_path / "bomb", tmp_path / "total")
    for folder in ("ratio", "total"):
        assert sum(path.stat().st_size for path in (tmp_path / folder).iterdir()) <= 10_000_000


def test_lying_header_and_many_files(tmp_path, monkeypatch):
    (tmp_path / "liar").write_bytes(header_that_lies())
    with pytest.raises(FetchError, match="damaged"):
        archives.unpack(tmp_path / "liar", tmp_path / "out")
    monkeypatch.setattr(archives, "MAX_ENTRIES", 3)
    (tmp_path / "many").write_bytes(tarred(*((str(i), b"") for i in range(4))))
    with pytest.raises(FetchError, match="more than 3 files"):
        archives.unpack(tmp_path / "many", tmp_path / "out2")


# --- processes and folders -------------------------------------------------------------------------------------

CHILD = """
import sys, time
from pathlib import Path
from xmlpreck.data import fetch
from xmlpreck.data.fetch import archives
if sys.argv[3] == "unpack":
    def stuck(stream, out, size):
        out.write(stream.read(5))
        out.flush()
        time.sleep(60)
    archives.shutil.copyfileobj = stuck
files = {"train.txt": "Tiny/tiny_train.txt", "test.txt": "tiny_test.txt"}
archive = fetch.Archive(files=files, sha256="unverified", url=sys.argv[1])
fetch.fetch_mirror(fetch.Mirror("", (archive,)), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("moment", ["download", "unpack"])
def test_killed_process(server, tmp_path, moment):
    server.body = zipped({"Tiny/tiny_train.txt": TRAIN, "tiny_test.txt": TEST, "noise": NOISE}, zipfile.ZIP_STORED)
    if moment == "download":
        server.piece, server.rest = 10_000, 0.05
    target = tmp_path / "tiny"
    words = [sys.executable, "-c", CHILD, server.url + "/tiny.zip", str(target), moment]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 20
        pattern = "*.part" if moment == "download" else ".tiny.xmlpreck-*/new/*/Tiny/tiny_train.txt"
        while not any(path.stat().st_size for path in tmp_path.glob(pattern)):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert not target.exists()
    server.rest, server.requests = 0, []
    fetch_mirror(mirror_of(server), target)
    check_tiny(target)
    assert leftovers(tmp_path) == ["tiny"]
    if moment == "download":  # it went on
        ((_, span),) = server.requests
        assert int(span.removeprefix("bytes=").removesuffix("-")) > 0
    else:
        assert server.requests == []


def test_two_at_a_time(server, tmp_path, capsys):
    server.body, server.piece, server.rest = GOOD_ZIP, 50, 0.02
    errors = []

    def run():
        try:
            fetch_mirror(mirror_of(server), tmp_path / "tiny")
        except InputError as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    check_tiny(tmp_path / "tiny")
    assert len(server.requests) == 1
    assert "waiting: another process is fetching it" in capsys.readouterr().err


def test_full_disk_keeps_the_download(server, tmp_path, monkeypatch):
    server.body = GOOD_ZIP

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(archives.shutil, "copyfileobj", full)
        with pytest.raises(FetchError, match="tiny: cannot be written: No space left on device"):
            fetch_mirror(mirror_of(server), tmp_path / "tiny")
    assert not (tmp_path / "tiny").exists()
    fetch_mirror(mirror_of(server), tmp_path / "tiny")
    check_tiny(tmp_path / "tiny")
    assert len(server.requests) == 1


def test_folder_that_cannot_be_written(server, tmp_path):
    server.body = GOOD_ZIP
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FetchError, match=rf"^{tmp_path}/file.*: cannot be written: (Not a directory|File exists)$"):
        fetch_mirror(mirror_of(server), tmp_path / "file" / "tiny")
    (tmp_path / "closed").mkdir(mode=0o500)
    if os.access(tmp_path / "closed", os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(FetchError, match="cannot be written: Permission denied"):
        fetch_mirror(mirror_of(server), tmp_path / "closed" / "tiny")
