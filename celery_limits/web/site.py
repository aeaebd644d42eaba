"""What is answered: routes, roles, the guard against requests that another site has made a browser send, and headers.

Looking changes nothing. A change is a POST by a visitor who may operate, from a page of ours or from no browser at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from celery.exceptions import ImproperlyConfigured

from celery_limits.app.handle import Limits
from celery_limits.errors import LimitError
from celery_limits.printable import json_text, printable_lines
from celery_limits.store import StoreError

from .access import Access, Role, Visitor, visitor
from .actions import KEY_ACTIONS, QUEUE_ACTIONS, TASK_ACTIONS, Actions, Refusal
from .http import MOST_BYTES, BadRequest, Request, Response
from .index import KeyIndex
from .pages import NotFound, Pages
from .render import Renderer

__all__ = ["Site"]

logger = logging.getLogger(__name__)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_STATIC = {
    "style.css": "text/css; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "htmx.LICENSE.txt": "text/plain; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_PAGES = ("keys", "declared", "workers", "queues", "audit")


class Site:
    """The page of one Celery app."""

    def __init__(self, app: Any, access: Access | Role | None = None, *, always: bool = False) -> None:
        self.app, self.access, self._always = app, access, always
        if always:
            self.index.start()

    @cached_property
    def limits(self) -> Limits:
        """With all tasks of the app loaded, since they declare the limits."""
        self.app.loader.import_default_modules()
        self.app.finalize()
        return Limits(self.app)

    @cached_property
    def index(self) -> KeyIndex:
        return KeyIndex(self.limits, always=self._always)

    @cached_property
    def pages(self) -> Pages:
        return Pages(self.limits, self.index)

    @cached_property
    def renderer(self) -> Renderer:
        return Renderer()

    # -- one request ---------------------------------------------------------------------------------------------

    def handle(self, request: Request) -> Response:
        answer = self._guarded(request)
        named = {name.lower() for name, _ in answer.headers}
        extra = [pair for pair in (*SECURITY, ("Cache-Control", "no-store")) if pair[0].lower() not in named]
        return Response(answer.status, answer.body, answer.kind, (*answer.headers, *extra))

    def _guarded(self, request: Request) -> Response:
        if len(request.body) > MOST_BYTES:
            return _plain(413, "The request is too large.")
        if request.path.startswith("/static/"):
            return _static(request)
        try:
            who = visitor(self.access, request)
        except LimitError as error:
            logger.error("limits: nobody is let in to the page: %s", error)
            who = Visitor("none")
        if who.role == "none":
            return self._closed()
        if request.method not in ("GET", "HEAD", "POST"):
            return _plain(405, "Only GET, HEAD and POST are answered.", ("Allow", "GET, HEAD, POST"))
        if request.method == "POST":
            if not who.may_operate:
                return self._error(request, who, 403, "Your role is read: you may look, and change nothing.")
            if foreign := foreign_site(request):
                return self._error(request, who, 403, foreign)
        return self._answered(request, who)

    def _closed(self) -> Response:
        challenge = getattr(self.access, "challenge", None)
        if challenge:
            return _plain(401, "Credentials are needed.", ("WWW-Authenticate", challenge))
        return _plain(403, "This page is closed to you: the configuration of its server says who may see it.")

    def _answered(self, request: Request, who: Visitor) -> Response:
        try:
            return self._route(request, who)
        except NotFound as error:
            return self._error(request, who, 404, str(error), error.kind, error.near)
        except (Refusal, BadRequest) as error:
            return self._error(request, who, 400, str(error), getattr(error, "kind", "BadRequest"))
        except StoreError as error:
            text = f"The limit store {self.limits.url} does not answer: {error}"
            return self._error(request, who, 503, text, type(error).__name__)
        except (LimitError, ImproperlyConfigured) as error:
            return self._error(request, who, 400, str(error), type(error).__name__)

    def _error(
        self, request: Request, who: Visitor, status: int, text: str, kind: str = "Error", near: tuple[str, ...] = ()
    ) -> Response:
        text = printable_lines(text)
        if request.path.startswith("/api/") or request.wants_json:
            return _json({"error": {"kind": kind, "message": text}}, status)
        return self.renderer.page(request, who, "error.html", {"status": status, "text": text, "near": near}, status)

    # -- routes --------------------------------------------------------------------------------------------------

    def _route(self, request: Request, who: Visitor) -> Response:
        if request.method != "POST" and request.path in ("", "/"):
            if request.path == "":
                return Response.redirect(f"{request.prefix}/")
            return self._page(request, who, "overview", self.pages.overview)
        first, _, rest = request.path[1:].partition("/")
        if request.method == "POST":
            return self._act(request, who, first, rest)
        if first == "api":
            return _json(self.pages.api(rest, request))
        if first == "keys" and rest:
            return self._page(request, who, "key", lambda _: self.pages.key(rest))
        if first == "tasks" and rest:
            return self._page(request, who, "task", lambda _: self.pages.task(rest))
        if first in _PAGES and not rest:
            view: Callable[[Request], dict[str, Any]] = getattr(self.pages, first)
            return self._page(request, who, first, view)
        raise NotFound("There is no such page.")

    def _page(self, request: Request, who: Visitor, name: str, view: Callable[[Request], dict[str, Any]]) -> Response:
        return self.renderer.page(request, who, f"{name}.html", {"page": name, **view(request)})

    def _act(self, request: Request, who: Visitor, kind: str, rest: str) -> Response:
        """POST /keys/<key>/<action>, /tasks/<task id>/<action>, /queues/<queue>/<action>, /audit/repair."""
        actions = Actions(self.limits, who, request.form)
        subject, _, verb = rest.rpartition("/")
        if kind == "audit" and rest == "repair":
            return self._did(request, actions.repair(), request.url("audit"), "repair")
        known = {"keys": KEY_ACTIONS, "tasks": TASK_ACTIONS, "queues": QUEUE_ACTIONS}.get(kind)
        if known is None or verb not in known or not subject:
            raise NotFound("There is no such action.")
        if kind == "keys":
            self.pages.known(subject)
        said = getattr(actions, known[verb])(subject)
        self.index.expire()
        back = request.url(kind, subject) if kind != "queues" else request.url("queues")
        if kind == "keys" and request.form.get("back") == "keys":
            back = request.url("keys")
        return self._did(request, said, back, verb)

    def _did(self, request: Request, said: Any, back: str, verb: str) -> Response:
        return _json(said) if request.wants_json else Response.redirect(f"{back}?done={verb}")


def foreign_site(request: Request) -> str | None:
    """Why a POST is refused that a browser was made to send by another site; None for one that is fine. A browser
    says where a request comes from in Sec-Fetch-Site, or Origin, or both; what says neither is no browser, and
    carries no one's session."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return "This change was asked for by another site (Sec-Fetch-Site), and is refused."
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
        return "This change was asked for by another site (Origin), and is refused."
    return None


def _plain(status: int, text: str, *headers: tuple[str, str]) -> Response:
    return Response(status, f"{text}\n".encode(), "text/plain; charset=utf-8", headers)


def _json(data: Any, status: int = 200) -> Response:
    return Response(status, json_text(data).encode(errors="backslashreplace") + b"\n", "application/json")


def _static(request: Request) -> Response:
    name = request.path.removeprefix("/static/")
    if name not in _STATIC or request.method not in ("GET", "HEAD"):
        return _plain(404, "There is no such file.")
    body = (files(__package__) / "static" / name).read_bytes()
    return Response(200, body, _STATIC[name], (("Cache-Control", "public, max-age=3600"),))
