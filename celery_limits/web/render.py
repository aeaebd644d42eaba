"""Templates, through Jinja2, which escapes all that is foreign; and what they have in common."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlencode

from celery_limits.app.summary import duration
from celery_limits.cli.log import change_text
from celery_limits.cli.shape import frequency, limit_text
from celery_limits.errors import LimitError
from celery_limits.printable import printable

from .access import Visitor
from .http import Request, Response

__all__ = ["Renderer"]

NAV = (
    ("", "Overview"), ("keys", "Keys"), ("declared", "Declared"), ("workers", "Workers"), ("queues", "Queues"),
    ("audit", "Audit"),
)  # fmt: skip
DONE = {
    "resize": "Resized.",
    "reset": "What the tasks declare is in force again.",
    "pause": "Paused.",
    "resume": "Resumed.",
    "hold-off": "Held off.",
    "cancel": "Cancelled.",
    "run": "Let through: it is granted, and starts when a worker takes it.",
    "repair": "Repaired what could be repaired.",
}


PAST = {
    "pause": "paused",
    "resume": "resumed",
    "resize": "resized",
    "reset": "reset",
    "cancel": "cancelled",
    "run": "let through",
    "hold-off": "held off",
}


def _past(what: str) -> str:
    return PAST.get(what, what)


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _ago(since: float | None, now: float) -> str:
    return "-" if since is None else duration(max(0.0, now - since))


class Renderer:
    def __init__(self) -> None:
        try:
            from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415
        except ImportError:
            raise LimitError("the page needs Jinja2: pip install 'celery-limits[web]'") from None
        self._templates = Environment(
            loader=PackageLoader("celery_limits.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters.update(
            duration=duration, frequency=frequency, limit_text=limit_text, clock=_clock, iso=_iso, printable=printable,
            change=change_text,
            past=_past,
        )  # fmt: skip
        self._templates.globals.update(ago=_ago)

    def page(
        self, request: Request, who: Visitor, template: str, context: dict[str, Any], status: int = 200
    ) -> Response:
        shared: dict[str, Any] = {
            "url": request.url,
            "who": who,
            "nav": NAV,
            "csrf": request.csrf,
            "page": "",
            "done": DONE.get(request.query.get("done", ""), ""),
            "here": _here(request),
            "at": time.time(),
        }
        text = self._templates.get_template(template).render({**shared, **context})
        return Response(status, text.encode(errors="backslashreplace"))


def _here(request: Request) -> str:
    """The address of this page, to look again; without the notice of what was done."""
    path = request.url(*_segments(request.path))
    kept = {name: value for name, value in request.query.items() if name != "done" and value}
    return f"{path}?{urlencode(kept, errors='surrogateescape')}" if kept else path


def _segments(path: str) -> list[str]:
    """The kind of page, and what it is about, whatever slashes that has."""
    first, slash, rest = path[1:].partition("/")
    return [first, rest] if slash and rest else [first]
