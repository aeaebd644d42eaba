"""Acknowledgements that the event loop was told of and has not come to.

Relies on a worker acknowledging and rejecting by `consumer.call_soon_ack(message.ack_log_error, ...)`, from any thread
(`call_soon` before Celery 5.7). While the loop has ended and its connection is being closed, which can take seconds,
bodies end in a pool of threads. The channel that is closed must not give back their messages, nor may one be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_limits.transport.delivery import is_own

__all__ = ["Acknowledgements", "acknowledgements_of"]


class Acknowledgements:
    """Stands in for the function by which a consumer's messages are acknowledged."""

    def __init__(self, call_soon: Callable[..., Any]) -> None:
        self._call_soon = call_soon
        self._pending: dict[str, Callable[[], Any]] = {}

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        message = getattr(function, "__self__", None)
        if not is_own(message):
            return self._call_soon(function, *args, **kwargs)
        tag: str = getattr(message, "delivery_tag")  # noqa: B009

        def act() -> None:
            """Once, whoever comes first: the loop or `catch_up`."""
            if self._pending.pop(tag, None) is not None:
                function(*args, **kwargs)

        self._pending[tag] = act
        return self._call_soon(act)

    @property
    def tags(self) -> set[str]:
        """The deliveries that are as good as done."""
        return {*self._pending}

    def catch_up(self) -> None:
        """In the loop's own thread."""
        for act in tuple(self._pending.values()):
            act()


def acknowledgements_of(consumer: Any) -> Acknowledgements:
    """Those of this consumer, from now on if there were none."""
    name = "call_soon_ack" if hasattr(consumer, "call_soon_ack") else "call_soon"
    found = getattr(consumer, name)
    if not isinstance(found, Acknowledgements):
        found = Acknowledgements(found)
        setattr(consumer, name, found)
    return found
