"""The commands of the `celery` program. Imported only where that program runs."""

from __future__ import annotations

from typing import Any

import click
from celery.exceptions import ImproperlyConfigured

from celery_limits.app.revoking import in_store
from celery_limits.errors import LimitError

from .registry import patch

__all__: list[str] = []


@patch(
    "celery.bin.worker:worker.callback",
    takes="ctx",
    why="Limits, settings and URLs that cannot work stop the worker with an explanation instead of a traceback.",
)
def explain_errors(original: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(*args, **kwargs)
    except LimitError as error:
        raise click.ClickException(f"limits: {error}") from None
    except ImproperlyConfigured as error:
        raise click.ClickException(str(error)) from None


@patch(
    "celery.bin.purge:purge.callback",
    takes="ctx",
    why="`celery purge` empties the queues by itself, without `Control.purge`.",
)
def purge(original: Any, *args: Any, **kwargs: Any) -> None:
    original(*args, **kwargs)
    obj = click.get_current_context().obj
    names = set(kwargs["queues"] or obj.app.amqp.queues) - set(kwargs["exclude_queues"] or ())
    if purged := in_store(obj.app, lambda limits: limits.purge(names)):
        obj.echo(f"Revoked {purged} that waited in the store.")
