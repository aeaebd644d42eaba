"""All keys, ranked, as this process has last read them; and samples of the busy ones, for sparklines.

There may be a hundred thousand keys, and no request waits for all of them to be read. One thread reads them, a
batch at a time, and rests between two batches for several times as long as one took, so that the store hardly
notices. What a page shows of a
key is read anew for that page; only order, sums and samples come from here. Nothing is written to the store.

Where a pass over all keys is quick, a request that finds the ranking old makes one itself: then it is never old.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from fnmatch import translate
from typing import Any, NamedTuple

from celery_limits.app.handle import Limits
from celery_limits.app.summary import health, worst_first
from celery_limits.store.status import Status

__all__ = ["SPAN", "KeyIndex", "Row", "Sample"]

logger = logging.getLogger(__name__)

SPAN = 900.0
"""Seconds that samples are kept for."""
EVERY = 5.0
"""Seconds between two passes."""
BATCH = 200
RESTS = 4
"""A batch is followed by a rest of this many times its length."""
QUICK = 0.2
"""Seconds. A pass that takes less may be made by a request."""
OLD = 1.0
FEW_NAMES = 10_000
"""Of a Redis: so many are gone through in no time."""
MOST_SAMPLED = 3000
UNWATCHED = 600.0
"""Seconds without a request after which nothing is read any more."""


class Row(NamedTuple):
    """What is remembered of a key."""

    rank: tuple[int, float, int, str]
    key: str
    health: str
    template: str
    held: int
    waiting: int
    oldest: float | None
    steered: bool


class Sample(NamedTuple):
    at: float
    held: int
    waiting: int


class KeyIndex:
    """`always`: read from the start, and not only while someone looks."""

    def __init__(self, limits: Limits, *, always: bool = False) -> None:
        self._limits, self._always = limits, always
        self._lock = threading.Lock()
        self._pass_lock = threading.Lock()
        self._asked = threading.Event()
        self._pid = 0
        self._last_asked = 0.0
        self._took: float | None = None
        self.rows: list[Row] = []
        self.complete = False
        self.at = 0.0
        self.since = time.time()
        self.trouble = ""
        self._samples: dict[str, deque[Sample]] = {}
        if always:
            self.start()

    def start(self) -> None:
        """Once in each process: a server may fork after it has loaded its application."""
        with self._lock:
            if self._pid == os.getpid():
                return
            self._pid = os.getpid()
            self._asked, self._pass_lock = threading.Event(), threading.Lock()
            threading.Thread(target=self._run, name="limits-web-index", daemon=True).start()

    def look(self) -> list[Row]:
        """The keys, the worst first: made now if that is quick, else as they were last read."""
        self._last_asked = time.monotonic()
        self.start()
        self._asked.set()
        if self._took is None or (self._took < QUICK and time.monotonic() - self.at > OLD):
            if self._took is not None:
                self._pass(resting=False)
            else:
                deadline = time.monotonic() + self._patience()
                while not self.complete and not self.trouble and time.monotonic() < deadline:
                    time.sleep(0.005)
        return self.rows

    def _patience(self) -> float:
        """How long a request waits for the first pass: to its end where that is near, else not at all long."""
        client: Any = self._limits.store.client
        try:
            size = client.dbsize()
        except Exception:  # a request that needs the store says what is wrong with it
            return 0.0
        return 5.0 if isinstance(size, int) and size < FEW_NAMES else 0.1

    def expire(self) -> None:
        """Something was changed here: what is remembered is old."""
        self.at = 0.0

    def samples(self, key: str) -> Sequence[Sample]:
        return tuple(self._samples.get(key, ()))

    def choose(self, pattern: str = "", template: str = "", health_: str = "") -> list[Row]:
        """Of all, those whose key is like the pattern, a shell pattern or a part of it."""
        rows = self.look()
        if pattern:
            fits = matcher(pattern)
            rows = [row for row in rows if fits(row.key)]
        if template:
            rows = [row for row in rows if row.template == template]
        if health_:
            rows = [row for row in rows if row.health == health_]
        return rows

    # -- reading ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pid = os.getpid()
        while self._pid == pid:
            try:
                self._pass(resting=True)
            except Exception as error:  # the store is away: it is said, and read when it is back
                self.trouble = str(error)
                logger.debug("limits: the keys could not be read: %r", error)
            time.sleep(EVERY)
            if not self._always and time.monotonic() - self._last_asked > UNWATCHED:
                self._asked.clear()
                self._asked.wait()

    def _pass(self, *, resting: bool) -> None:
        with self._pass_lock:
            began, busy = time.monotonic(), 0.0
            limits, catalogue = self._limits, self._limits.catalogue()
            keys = sorted({*limits.store.keys(), *catalogue.literals})
            busy = time.monotonic() - began
            rows: list[Row] = []
            for first in range(0, len(keys), BATCH):
                start = time.monotonic()
                statuses = [catalogue.complete(s) for s in limits.store.statuses(keys[first : first + BATCH])]
                for status in statuses:
                    limit = catalogue.limit_of(status.key)
                    rows.append(_row(status, "" if limit is None or callable(limit.key) else limit.key))
                self._sample(statuses)
                took = time.monotonic() - start
                busy += took
                if resting and len(keys) > BATCH:
                    if not self.complete and first % (25 * BATCH) == 0:
                        self.rows = sorted(rows)
                    time.sleep(RESTS * took)
            rows.sort()
            self.rows, self.complete, self.at, self._took, self.trouble = rows, True, time.monotonic(), busy, ""
            self._drop_old()

    def _sample(self, statuses: list[Status]) -> None:
        for status in statuses:
            known = self._samples.get(status.key)
            if known is None:
                if not (status.held or status.waiting) or len(self._samples) >= MOST_SAMPLED:
                    continue
                known = self._samples[status.key] = deque(maxlen=int(SPAN / EVERY) * 5)
            known.append(Sample(status.now, status.held, status.waiting))

    def _drop_old(self) -> None:
        """A key that was quiet for the whole time is forgotten."""
        for key, samples in list(self._samples.items()):
            while samples and samples[-1].at - samples[0].at > SPAN:
                samples.popleft()
            if not any(sample.held or sample.waiting for sample in samples):
                del self._samples[key]


def _row(status: Status, template: str) -> Row:
    rank = worst_first(status)
    return Row(
        rank, status.key, health(status), template, status.held, status.waiting, status.oldest_wait, status.steered
    )


def matcher(pattern: str) -> Callable[[str], bool]:
    """A shell pattern; what has no *, ? or [ is a part of the key."""
    if not set("*?[").isdisjoint(pattern):
        found = re.compile(translate(pattern))
        return lambda key: found.match(key) is not None
    return lambda key: pattern in key
