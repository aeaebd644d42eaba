"""A revoke reaches what waits in the store: from a program, the command line, or the remote control of a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from celery.exceptions import ImproperlyConfigured
from celery.utils.functional import maybe_list
from celery.utils.log import get_logger

from celery_limits.message.header import can_be_limited
from celery_limits.printable import printable
from celery_limits.store import StoreError

from .handle import Limits

__all__ = ["cancel", "cancel_stamped", "in_store"]

logger = get_logger(__name__)


def cancel(app: Any, task_ids: Any, *, report: bool = False) -> None:
    """Ends these tasks in the store; `task_ids` is one id or several, as Celery's own `revoke` takes them.

    `report`: this process is a worker, and reports their end itself.
    """
    _cancel(app, lambda _: maybe_list(task_ids) or (), report)


def cancel_stamped(app: Any, headers: Mapping[str, Any] | list[str], *, report: bool = False) -> None:
    """Ends what waits with one of these stamps: a mapping, or a list of "name=value" as the command line has it."""
    if not isinstance(headers, Mapping):
        headers = {name: value for name, _, value in (text.partition("=") for text in headers)}
    _cancel(app, lambda limits: limits.waiting_with_stamps(headers), report)


def _cancel(app: Any, task_ids: Callable[[Limits], Iterable[str]], report: bool) -> None:
    def work(limits: Limits) -> int:
        end = limits.cancel if report else limits.revoke
        return len([end(task_id) for task_id in task_ids(limits) if can_be_limited(task_id)])

    in_store(app, work)


def in_store(app: Any, work: Callable[[Limits], int]) -> int:
    """A store that is away, or that was never configured, must not keep the workers from being told."""
    limits = Limits(app)
    try:
        return work(limits) if limits.in_use else 0
    except (StoreError, ImproperlyConfigured) as error:
        said = printable(error)
        logger.warning("limits: could not cancel in the store: %s; workers that get the task refuse it", said)
        return 0
