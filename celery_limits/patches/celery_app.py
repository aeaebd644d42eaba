"""Celery's app: each gets our steps and flags, its declarations are checked, its connections know its limits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click
from celery.exceptions import ImproperlyConfigured

from celery_limits.app import Limits
from celery_limits.app.stamp import declared_of, own_attributes, refuse_misspelt
from celery_limits.app.store_url import OURS
from celery_limits.secret import masked_info
from celery_limits.transport.schemes import adopt_url

from .registry import patch

__all__ = ["equip"]

_STEPS = "celery_limits.worker.steps"
_SECRETS = ("limits_store_url", "broker_read_url", "broker_write_url", "transport_options")
"""Ends of the names of settings with passwords in them that Celery shows, some of its own in some versions only."""


def equip(app: Any) -> None:
    """`app.steps` and `app.user_options` are Celery's own ways to extend its worker. The steps are named, and a worker
    imports them when it starts: a process that only publishes never loads Celery's worker."""
    app.steps["worker"].update((f"{_STEPS}:LimitsStep", f"{_STEPS}:SettleStep"))
    app.steps["consumer"].add(f"{_STEPS}:QueueMarks")
    app.user_options["worker"].update(_OPTIONS)


_OPTIONS = (
    click.Option(("--limits-store",), metavar="URL", help="URL of the Redis that stores the limits."),
    click.Option(
        ("--limits-lease",),
        type=float,
        metavar="SECONDS",
        help="Seconds without a heartbeat before a worker is declared dead.",
    ),
    click.Option(("--limits-namespace",), metavar="NAME", help="Namespace; apps with the same one share their limits."),
    click.Option(("--limits-metrics-port",), type=int, metavar="PORT", help="Port that serves metrics to Prometheus."),
)


@patch("celery:Celery.__init__", takes="self", why="Every app gets the steps and flags of its worker.")
def equip_new(original: Any, app: Any, *args: Any, **kwargs: Any) -> None:
    original(app, *args, **kwargs)
    equip(app)


@patch(
    "celery:Celery.finalize",
    takes="self auto",
    why="Declarations are checked when all tasks are known: an unknown argument or a deadlock is an error here.",
)
def check_declarations(original: Any, app: Any, *args: Any, **kwargs: Any) -> Any:
    was = app.finalized
    result = original(app, *args, **kwargs)
    if not was and app.finalized:
        for task in list(app._tasks.values()):
            if declared_of(task) is None:
                refuse_misspelt(task.name, own_attributes(task))
        Limits(app).check()
    return result


@patch(
    "celery:Celery._connection",
    takes="self url",
    why="The transport learns namespace and lease; the password leaves the host name before anybody shows it.",
)
def connect(original: Any, app: Any, url: Any, *args: Any, transport_options: Any = None, **kwargs: Any) -> Any:
    ours_url = isinstance(url, str) and url.startswith(OURS)
    if ours_url:
        limits = Limits(app)
        settings = limits.settings
        ours = {
            "limits_namespace": settings.namespace,
            "limits_lease": settings.lease,
            "limits_lines": limits.on_broker and settings.trust_headers,  # else the gate must see it first
            "limits_delays": limits.on_broker and settings.delay_in_store,
        }
        transport_options = {**ours, **(transport_options or {})}
    connection = original(app, url, *args, transport_options=transport_options, **kwargs)
    if ours_url:
        with suppress(ImproperlyConfigured):  # raised again, with the same words, when the connection is used
            adopt_url(connection)
    return connection


@patch(
    "celery.app.utils:filter_hidden_settings",
    takes="conf",
    why="`inspect conf` and `celery report` show no password of a store or an alternate broker.",
)
def hide_secrets(original: Callable[[Any], dict[str, Any]], conf: Any) -> dict[str, Any]:
    shown = original(conf)
    for name, value in shown.items():
        if str(name).lower().endswith(_SECRETS):
            shown[name] = masked_info(value)
    return shown
