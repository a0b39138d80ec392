"""The page at `/`: one HTML file whose script and style are allowed by their hashes, and nothing else is."""

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from typing import NamedTuple

# Trusted Types: no text can become markup in this page, by mistake or by somebody's text.
_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; img-src data:; "
    "require-trusted-types-for 'script'; trusted-types 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


class Page(NamedTuple):
    """The page, and its Content-Security-Policy."""

    html: str
    policy: str


@cache
def load_page() -> Page:
    """Read the page."""
    html = (resources.files(__package__) / "index.html").read_text("utf-8")
    hashes = {tag: _hash(*re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)) for tag in ("script", "style")}
    return Page(html, _POLICY.format(**hashes))


def _hash(content: str) -> str:
    """Name the one element of its kind as a policy does."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
