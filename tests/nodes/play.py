"""One test on nodes, as seen from outside: what the ledger says, what the store says, and the latches to open."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from pytest_celery import CeleryTestSetup, CeleryTestWorker

from celery_limits import Limits
from tests.nodes.tasks import LEDGER, latch
from tests.waiting import wait_until
from tests.worker.harness import leftovers

__all__ = ["WITHIN", "Entry", "Play"]

WITHIN = 40.0
"""Seconds for whatever a node is to do. Generous, since it only matters when a test is about to fail."""


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    what: str
    key: str
    name: str
    task_id: str
    hostname: str


class Play:
    """The nodes of a test and what happens on them."""

    def __init__(self, setup: CeleryTestSetup) -> None:
        self.setup, self.app = setup, setup.app
        self.limits = Limits(self.app)
        self._redis = setup.backend.container.client

    # -- the ledger ------------------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        return [Entry(*json.loads(line)) for line in self._redis.lrange(LEDGER, 0, -1)]

    def starts(self, key: str) -> list[Entry]:
        return [entry for entry in self.entries() if entry.what == "start" and entry.key == key]

    def peaks(self) -> dict[str, int]:
        """The most bodies of each key that ran at once. Those on a node end, at the latest, when it is killed."""
        running: dict[tuple[str, str], Entry] = {}
        found: dict[str, int] = {}
        for entry in self.entries():
            if entry.what == "start":
                running[entry.task_id, entry.hostname] = entry
            elif entry.what == "end":
                running.pop((entry.task_id, entry.hostname), None)
            else:
                running = {at: other for at, other in running.items() if other.hostname != entry.hostname}
            for key, count in Counter(body.key for body in running.values()).items():
                found[key] = max(found.get(key, 0), count)
        return found

    def wait_started(self, key: str, count: int = 1) -> list[Entry]:
        wait_until(lambda: len(self.starts(key)) >= count, f"{count} start under {key!r}", within=WITHIN)
        return self.starts(key)

    # -- acting ----------------------------------------------------------------------------------------------------

    def open(self, *names: str) -> None:
        for name in names:
            self._redis.rpush(latch(name), "open")

    def kill(self, node: CeleryTestWorker) -> None:
        """SIGKILL to all of a node, after a note of it: what its bodies ran under may be another's from then on."""
        self._redis.rpush(LEDGER, json.dumps(["killed", "", "", "", node.hostname()]))
        node.kill()

    def node_of(self, entry: Entry) -> CeleryTestWorker:
        return next(node for node in self.setup.worker_cluster if node.hostname() == entry.hostname)

    # -- the store -------------------------------------------------------------------------------------------------

    def wait_parked(self, key: str, count: int) -> None:
        """Until at least so many wait in the store. A node whose places are all taken keeps up to two."""
        wait_until(lambda: self.limits.status(key).waiting >= count, f"{count} wait at {key!r}", within=WITHIN)

    def wait_state(self, result: Any, state: str) -> None:
        wait_until(lambda: result.state == state, f"{result.id} is {state}", within=WITHIN)

    def wait_quiet(self) -> None:
        """Until nothing is in the store but settings and the leases of live workers; the audit finds nothing either."""
        wait_until(lambda: not leftovers(self.limits), "all is quiet", within=WITHIN)
        assert self.limits.audit() == []

    def close(self) -> None:
        self._redis.close()
        self.limits.store.client.close()
        self.app.close()
