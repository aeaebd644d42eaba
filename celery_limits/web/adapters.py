"""The page as an ASGI and as a WSGI application. Both only translate: what is answered is decided by `Site`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from .access import Access, Role
from .http import MOST_BYTES, Headers, Request, Response
from .site import Site

__all__ = ["asgi", "query_of", "wsgi"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def query_of(text: str) -> dict[str, str]:
    return dict(parse_qsl(text, keep_blank_values=True, errors="surrogateescape"))


def _without(prefix: str, path: str) -> str:
    return path[len(prefix) :] if prefix and (path == prefix or path.startswith(f"{prefix}/")) else path


def asgi(
    app: Any, access: Access | Role | None = None, *, always: bool = False
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """An ASGI application for this Celery app, to serve, or to mount: `fastapi_app.mount("/limits",
    asgi(celery_app, access=...))`.

    `access` says who may see and do what; without one, only this machine may, and may do all. It is a role, or a
    function that gets the `Request` and returns a role, or a role and a name: `basic(file)`, `proxy(header)`, or your
    own. With
    `always` the samples of the sparklines are taken from the start, else while someone looks.
    """
    site = Site(app, access, always=always)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await _live(receive, send)
        if scope["type"] != "http":
            raise ValueError(f"the limits page is plain HTTP, not {scope['type']}")
        body = await _body(receive)
        if body is None:
            answer = Response(413, b"too large", "text/plain; charset=utf-8")
        else:
            answer = await asyncio.to_thread(site.handle, _from_scope(scope, body))
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
        headers += [(b"content-type", answer.kind.encode()), (b"content-length", str(len(answer.body)).encode())]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        sent = b"" if scope["method"] == "HEAD" else answer.body
        await send({"type": "http.response.body", "body": sent})
        return None

    return application


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _body(receive: Receive) -> bytes | None:
    """None where it is larger than any form of ours."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MOST_BYTES:
            return None
    return body


def _from_scope(scope: Scope, body: bytes) -> Request:
    """The path as it was sent, where the server tells it: `%2F` in a key is no slash there."""
    prefix = scope.get("root_path", "").rstrip("/")
    path = scope["path"]
    if raw := scope.get("raw_path"):
        path = unquote_to_bytes(raw.partition(b"?")[0]).decode(errors="surrogateescape")
    headers = Headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
    return Request(
        method=scope["method"],
        path=_without(prefix, path),
        prefix=prefix,
        query=query_of(scope.get("query_string", b"").decode("latin-1")),
        headers=headers,
        body=body,
        client=(scope.get("client") or ("", 0))[0],
        origin=scope,
    )


def wsgi(app: Any, access: Access | Role | None = None) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    """A WSGI application for this Celery app, to serve, or to mount, as with Flask:

    `flask_app.wsgi_app = DispatcherMiddleware(flask_app.wsgi_app, {"/limits": wsgi(celery_app, access=...)})`.
    `access` is as for `asgi`.
    """
    site = Site(app, access)

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        answer = site.handle(_from_environ(environ))
        headers = [
            *answer.headers, ("Content-Type", answer.kind), ("Content-Length", str(len(answer.body)))
        ]  # fmt: skip
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", headers)
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else answer.body]

    return application


def _from_environ(environ: dict[str, Any]) -> Request:
    names = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}
    headers = [(names[name], value) for name, value in environ.items() if name in names]
    headers += [(name[5:].replace("_", "-"), value) for name, value in environ.items() if name.startswith("HTTP_")]
    length = environ.get("CONTENT_LENGTH") or "0"
    size = min(int(length) if length.isdecimal() else 0, MOST_BYTES + 1)
    return Request(
        method=environ["REQUEST_METHOD"],
        path=environ.get("PATH_INFO", "").encode("latin-1").decode(errors="surrogateescape"),
        prefix=environ.get("SCRIPT_NAME", "").rstrip("/"),
        query=query_of(environ.get("QUERY_STRING", "")),
        headers=Headers(headers),
        body=environ["wsgi.input"].read(size) if size else b"",
        client=environ.get("REMOTE_ADDR", ""),
        origin=environ,
    )
