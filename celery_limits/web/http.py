"""A request and an answer, whatever server they come from and go to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote

__all__ = ["MOST_BYTES", "BadRequest", "Headers", "Request", "Response"]

MOST_BYTES = 64 * 1024
"""Of the body of a request: a form with a few short fields."""


class BadRequest(ValueError):
    """What was sent can't be read."""


class Headers(Mapping[str, str]):
    """By name, in whatever case."""

    def __init__(self, items: Iterable[tuple[str, str]] = ()) -> None:
        self._items = {name.lower(): value for name, value in items}

    def __getitem__(self, name: str) -> str:
        return self._items[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


@dataclass(frozen=True)
class Request:
    """`path` is decoded, and without `prefix`, the path under which the page is mounted. `client` is the address of
    the peer; `origin` is what the server knew of the request: an ASGI scope, a WSGI environ, a Django request."""

    method: str
    path: str
    prefix: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Headers = field(default_factory=Headers)
    body: bytes = b""
    client: str = ""
    csrf: str = ""
    origin: Any = None

    @property
    def form(self) -> dict[str, str]:
        """The fields that were sent, as a form or as JSON."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            if kind == "application/json":
                given = json.loads(self.body or b"{}")
                if not isinstance(given, dict):
                    raise BadRequest("the body must be a JSON object")
                return {str(name): "" if value is None else str(value) for name, value in given.items()}
            return dict(parse_qsl(self.body.decode(), keep_blank_values=True))
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise BadRequest(f"the body can't be read: {error}") from None

    @property
    def wants_json(self) -> bool:
        accept = self.headers.get("accept", "")
        return "application/json" in accept and "text/html" not in accept

    def url(self, *parts: str) -> str:
        """A path of ours. Each part is one segment, whatever characters it has."""
        return "/".join([self.prefix, *(quote(part.encode(errors="surrogateescape"), safe="") for part in parts)])


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes = b""
    kind: str = "text/html; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def redirect(cls, to: str) -> Response:
        return cls(303, headers=(("Location", to),))
