"""`celery -A proj limits …`: seeing and steering limits from a terminal or a script.

Registered through Celery's entry point `celery.commands`, so it is loaded with every `celery` command: what takes long
to import (rich) is imported when something is shown. What `--json` prints is described in docs/cli.md.
"""

from __future__ import annotations

from typing import Any

import click
from celery.bin.base import handle_preload_options

from .draining import drain
from .health import aside, audit, check
from .later import later
from .log import changes, report_
from .metrics import metrics
from .reading import explain, list_, show, tasks
from .steering import cancel, pause, reset, resize, resume, run
from .top import top
from .web import web

__all__ = ["limits"]


@click.group(name="limits", short_help="See and steer the limits of tasks.")
@click.pass_context
@handle_preload_options
def limits(ctx: click.Context, **_: Any) -> None:
    """See and steer the limits of tasks.

    Exit codes: 0 all is well; 1 something is wrong, and it says what; 2 the command was not written as it should be.
    """


_READING = (list_, show, explain, tasks, later, changes, report_, top, metrics, web)
_STEERING = (resize, reset, pause, resume, cancel, run)
_HEALTH = (audit, aside, check, drain)
for _command in (*_READING, *_STEERING, *_HEALTH):
    limits.add_command(_command)
