"""`web`: the page, served by a process of its own."""

from __future__ import annotations

import socket
from typing import Any

import click
from celery.bin.base import CeleryOption

from .base import Failure, Session, limits_command

__all__ = ["web"]


@limits_command("web")
@click.option("--host", default="127.0.0.1", show_default=True, cls=CeleryOption, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=5556, show_default=True, cls=CeleryOption,
              help="The port to listen at; 0 takes a free one.")  # fmt: skip
@click.option("--credentials", type=click.Path(dir_okay=False), metavar="FILE", cls=CeleryOption,
              help="Users: name:password[:role] in each line; the role is read or operate.")  # fmt: skip
@click.option("--user-header", metavar="NAME", cls=CeleryOption,
              help="Believe this header of a proxy on this machine: the name of the user.")  # fmt: skip
@click.option("--operator", "operators", multiple=True, metavar="USER", cls=CeleryOption,
              help="With --user-header: a user who may operate; all others may read.")  # fmt: skip
@click.option(
    "--root-path", default="", metavar="PATH", cls=CeleryOption, help="The prefix under which a proxy serves it."
)
@click.option("--hash-password", is_flag=True, cls=CeleryOption, help="Ask for a password, print it for FILE, and end.")
def web(
    session: Session,
    host: str,
    port: int,
    credentials: str | None,
    user_header: str | None,
    operators: tuple[str, ...],
    root_path: str,
    hash_password: bool,
) -> None:
    """Serve the limits as a page: who holds what, who waits and why, and forms to steer.

    It reads the store as the other commands do, and needs no worker. Without credentials it serves this machine
    alone, and whoever is on it may operate; another address is refused. Needs the extra web: pip install
    'celery-limits[web]'.
    """
    try:
        import jinja2  # noqa: F401, PLC0415
        import uvicorn  # noqa: PLC0415
    except ImportError as error:
        raise Failure(f"the page needs {error.name}: pip install 'celery-limits[web]'", "MissingExtra") from None
    from celery_limits.web import access as kinds  # noqa: PLC0415
    from celery_limits.web.adapters import asgi  # noqa: PLC0415

    if hash_password:
        return click.echo(kinds.hash_password(click.prompt("Password", hide_input=True, confirmation_prompt=True)))
    if credentials and user_header:
        raise click.UsageError("--credentials and --user-header exclude each other.")
    access: Any = None
    if credentials:
        access = kinds.basic(credentials)
    elif user_header:
        access = kinds.proxy(user_header, dict.fromkeys(operators, "operate"))
    elif not kinds.is_loopback(host):
        raise Failure(
            f"{host} is open to others, and nothing says who they are: add --credentials FILE, or listen at "
            "127.0.0.1 behind a proxy with --user-header",
            "NoCredentials",
        )
    application = _under(root_path.rstrip("/"), asgi(session.limits.app, access, always=True))
    listener = _listener(host, port)
    name, taken = listener.getsockname()[:2]
    shown = f"[{name}]" if ":" in name else name
    session.say({"address": name, "port": taken}, f"Serving the limits at http://{shown}:{taken}{root_path}/")
    # The address of the peer decides who it is, so no header may replace it.
    config = uvicorn.Config(application, log_level="warning", proxy_headers=False, lifespan="off")
    return uvicorn.Server(config).run([listener])


def _under(prefix: str, application: Any) -> Any:
    """The application under a prefix that a proxy may or may not have taken off the path."""

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await application({**scope, "root_path": prefix}, receive, send)

    return mounted if prefix else application


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
        return listener
    except OSError as error:
        raise Failure(f"{host}:{port} can't be opened: {error}") from None
