"""Shell completion of keys, from the store where that answers at once, else from the declarations."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click
from celery.app.utils import find_app
from click.shell_completion import CompletionItem

from celery_limits.app.handle import Limits
from celery_limits.app.store_url import store_client
from celery_limits.store import Store

__all__ = ["complete_key"]

PATIENCE = 0.5
"""Seconds that a person at a prompt waits for the store."""
MOST = 200


def _app_of(ctx: click.Context) -> Any:
    """While a line is being completed no command has run, so the app that it names is only known by name."""
    given = ctx.find_root().params.get("app")
    return find_app(given) if isinstance(given, str) else given


def complete_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Keys that start with what was written. Never an error: whoever presses tab wants no traceback."""
    found: set[str] = set()
    with suppress(Exception):
        app = _app_of(ctx)
        limits = Limits(app)
        app.loader.import_default_modules()
        found.update(limits.catalogue().literals)
        client = store_client(app, limits.settings.store_url, PATIENCE)
        found.update(Store(client, limits.settings.namespace).keys())
    fit = (key for key in sorted(found) if key.isprintable())  # a shell must not get to see any other
    return [CompletionItem(key) for key in fit if key.startswith(incomplete)][:MOST]
