"""The tasks that worker nodes run. This file alone is copied into a node, so it stands on nothing else of the tests.

Bodies write their starts and ends to a ledger in the Redis of the results, a server apart from the one with the limits,
and wait at latches there. A line is one command to one server: their order is the order in which things happened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import shared_task

from celery_limits import Concurrency

__all__ = ["gather", "one", "three", "two", "unlimited"]

LEDGER = "ledger"
PATIENCE = 90
"""Seconds that a body waits at a latch: longer than any test waits for anything."""


def latch(name: str) -> str:
    return f"latch:{name}"


@contextmanager
def _noted(task: Any, key: str, name: str) -> Iterator[Any]:
    client = task.app.backend.client
    line = [key, name, task.request.id, task.request.hostname]
    client.rpush(LEDGER, json.dumps(["start", *line]))
    yield client
    client.rpush(LEDGER, json.dumps(["end", *line]))


def _play(task: Any, key: str, name: str) -> str:
    with _noted(task, key, name) as client:
        # Round and round: an open latch has one element, and stays open for all who come.
        opened = client.blmove(latch(name), latch(name), PATIENCE)
        assert opened, f"nobody has opened the latch {name!r}"
    return name


@shared_task(bind=True, name="nodes.one", limits=[Concurrency("{key}", 1)])
def one(self: Any, key: str, name: str) -> str:
    return _play(self, key, name)


@shared_task(bind=True, name="nodes.two", limits=[Concurrency("{key}", 2)])
def two(self: Any, key: str, name: str) -> str:
    return _play(self, key, name)


@shared_task(bind=True, name="nodes.three", limits=[Concurrency("{key}", 3)])
def three(self: Any, key: str, name: str) -> str:
    return _play(self, key, name)


@shared_task(bind=True, name="nodes.unlimited")
def unlimited(self: Any, key: str, name: str) -> str:
    """Limited only where a call says so."""
    return _play(self, key, name)


@shared_task(name="nodes.gather")
def gather(names: list[str]) -> list[str]:
    """The end of a chord."""
    return sorted(names)
