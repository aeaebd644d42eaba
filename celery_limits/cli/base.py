"""What the commands have in common: the app's limits, `--json`, errors that say what to do, and keys that exist.

An error is one line on stderr and exit code 1; with `--json` it is `{"error": {"kind", "message"}}` on stdout as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand, CeleryOption
from celery.exceptions import ImproperlyConfigured

from celery_limits.app.handle import Limits
from celery_limits.errors import LimitError
from celery_limits.printable import json_text, printable_lines
from celery_limits.store import StoreError, StoreUnavailable
from celery_limits.store.status import Status

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["Failure", "Session", "UnknownKey", "limits_command"]


class Failure(click.ClickException):
    """Ends the command with exit code 1."""

    def __init__(self, message: str, kind: str = "Error") -> None:
        super().__init__(printable_lines(message))
        self.kind = kind


class UnknownKey(Failure):
    """A key that is neither in use nor declared."""

    def __init__(self, key: str, near: list[str], hint: str = "") -> None:
        super().__init__(
            f"there is no key {key!r}: nobody uses it, and no task declares it.{_guess(near)}{hint}", "UnknownKey"
        )


def _guess(near: list[str]) -> str:
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


class Session:
    """One run of one command."""

    def __init__(self, ctx: click.Context, as_json: bool) -> None:
        self.ctx, self.as_json = ctx, as_json
        self.app: Any = ctx.obj.app

    @cached_property
    def limits(self) -> Limits:
        """With all tasks of the app loaded, since they declare the limits."""
        self.app.loader.import_default_modules()
        self.app.finalize()
        return Limits(self.app)

    @cached_property
    def console(self) -> Console:
        from .screen import console  # noqa: PLC0415  (imports rich)

        return console(no_color=self.ctx.obj.no_color)

    def emit(self, data: Any, *show: RenderableType) -> None:
        """The answer: as JSON, or as it is shown."""
        if self.as_json:
            click.echo(json_text(data))
            return
        for part in show:
            self.console.print(part)

    def say(self, data: Any, text: str) -> None:
        """An answer in lines."""
        click.echo(json_text(data) if self.as_json else printable_lines(text))

    def status(self, key: str, page: int = 0, *, hint: str = "") -> Status:
        """The status of a key that exists."""
        limits, catalogue = self.limits, self.limits.catalogue()
        status = limits.store.status(key, page)
        if not status.known:
            limit, near = catalogue.limit_of(key), catalogue.near(key, limits.store.keys())
            if limit is None:
                raise UnknownKey(key, near, hint)
            if limit.key != key:  # made from a template, which a misspelt key would fit as well
                click.echo(f"Note: nobody uses {key!r} at present.{_guess(near)}", err=True)
        return catalogue.complete(status)

    def explained(self, error: Exception) -> str:
        """An error with what this side knows of it."""
        if not isinstance(error, StoreError):
            return str(error)
        text = f"the limit store {Limits(self.app).url} failed: {error}"
        if isinstance(error, StoreUnavailable):
            text += " Is it running, and is this its URL? It is taken from limits_store_url, or else from the broker."
        return text


def limits_command(name: str | None = None, **options: Any) -> Callable[[Callable[..., Any]], CeleryCommand]:
    """A command of the group; the function gets its `Session` and returns an exit code, or None for 0."""

    def decorate(function: Callable[..., Any]) -> CeleryCommand:
        @click.command(name, cls=CeleryCommand, **options)
        @click.option("-j", "--json", "as_json", is_flag=True, cls=CeleryOption, help="Print JSON, for programs.")
        @wraps(function)
        def run(as_json: bool, **given: Any) -> None:
            ctx = click.get_current_context()
            session = Session(ctx, as_json)
            try:
                code = function(session, **given)
            except (LimitError, ImproperlyConfigured) as error:
                raise _failed(session, Failure(session.explained(error), type(error).__name__)) from None
            except Failure as failure:
                raise _failed(session, failure) from None
            ctx.exit(code or 0)

        command: CeleryCommand = run
        return command

    return decorate


def _failed(session: Session, failure: Failure) -> Failure:
    if session.as_json:
        click.echo(json_text({"error": {"kind": failure.kind, "message": failure.message}}))
    return failure
