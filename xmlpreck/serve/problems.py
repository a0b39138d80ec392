"""Errors as application/problem+json (RFC 9457): what the client did, and nothing of the server's inside."""

import json
from http import HTTPStatus
from typing import Any

from starlette.responses import Response


class Problem(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers

    def response(self) -> Response:
        body = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        return Response(to_json(body), self.status, self.headers, "application/problem+json")


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


class JSON(Response):
    """A value as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)
