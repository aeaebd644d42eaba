"""Kills consumers by the hundred, under load, and says what became of each message.

python -m tests.transport.kills --kills 300
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kombu import Connection, Producer

from tests.redis_server import RedisServer
from tests.transport.victims import CUT_OFF, DONE, TOOK, Ledger, consume, nursery
from tests.waiting import wait_until

__all__ = ["Verdict", "durable_server", "judge", "rampage"]

LEASE = 3.0
AHEAD = 200
"""Messages that the producer is ahead of the consumers, so that they always have some."""


@dataclass
class Verdict:
    """What the ledger proves. `lost`: never taken; `again`: taken after its acknowledgement, or by two that lived."""

    published: int
    kills: int
    lost: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    repeated: int = 0

    @property
    def is_fine(self) -> bool:
        return not self.lost and not self.again

    def __str__(self) -> str:
        return (
            f"{self.published} messages, {self.kills} kills: {len(self.lost)} lost, "
            f"{len(self.again)} taken again without need, {self.repeated} taken again since their consumer was killed"
        )


def judge(ledger: Ledger, published: int, killed: set[int], unsure: Iterable[int] = ()) -> Verdict:
    """Who was killed, or cut off for longer than its lease, may leave a message to be taken once more; nobody else."""
    entries = ledger.entries()
    cut_off = {entry.pid for entry in entries if entry.what == CUT_OFF}
    excused = killed | cut_off
    by_message: dict[int, list[Any]] = defaultdict(list)
    for entry in entries:
        by_message[entry.message].append(entry)
    verdict = Verdict(published, len(killed))
    for message in range(published):
        story = by_message[message]
        takes = [entry for entry in story if entry.what == TOOK]
        if not takes and message not in unsure:
            verdict.lost.append(message)
        done = [i for i, entry in enumerate(story) if entry.what == DONE and entry.pid not in cut_off]
        late = any(entry.what == TOOK for i in done[:1] for entry in story[i:])
        if late or sum(entry.pid not in excused for entry in takes) > 1:
            verdict.again.append(message)
        verdict.repeated += len(takes) > 1
    return verdict


def durable_server() -> RedisServer:
    """One that has written down what it has said yes to."""
    return RedisServer(appendonly="yes", appendfsync="always")


class Herd:
    """Consumers that are replaced when they are killed."""

    def __init__(self, url: str, queue: str, ledger: Ledger) -> None:
        self._arguments = (url, [queue], str(ledger.path))
        self._context = nursery()
        self._alive: list[Any] = []
        self.killed: set[int] = set()

    def add(self) -> None:
        process = self._context.Process(target=consume, args=(*self._arguments, random.choice((1, 4, 16)), None, LEASE))
        process.start()
        self._alive.append(process)

    def kill_one(self) -> None:
        victim = self._alive.pop(random.randrange(len(self._alive)))
        self.killed.add(victim.pid)
        victim.kill()
        victim.join()
        self.add()

    def stop(self) -> None:
        for process in self._alive:
            if process.is_alive():
                process.terminate()
        for process in self._alive:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()


class Load(threading.Thread):
    """Publishes as fast as is consumed, until it is stopped; `published` are the messages 0 to published - 1."""

    def __init__(self, url: str, queue: str, ledger: Ledger) -> None:
        super().__init__(daemon=True)
        self._url, self._queue, self._ledger = url, queue, ledger
        self.stopped = threading.Event()
        self.published = 0
        self.unsure: set[int] = set()
        """Of these nobody knows whether they were published: Redis went away meanwhile."""

    def run(self) -> None:
        with Connection(self._url) as connection, connection.channel() as channel:
            producer = Producer(channel, routing_key=self._queue, serializer="json")
            while not self.stopped.wait(0.02):
                try:
                    for _ in range(max(0, AHEAD - channel._size(self._queue))):
                        self.published += 1
                        self.unsure.add(self.published - 1)
                        producer.publish(self.published - 1)
                        self.unsure.discard(self.published - 1)
                except connection.connection_errors:
                    continue


def rampage(
    server: RedisServer, directory: Path, kills: int, *, restarts: int = 0, consumers: int = 3, seed: int = 1
) -> Verdict:
    """So many kills of consumers, and of Redis itself, at random moments; then everything is worked off."""
    random.seed(seed)
    blows = ["kill"] * kills + ["restart"] * restarts
    random.shuffle(blows)
    url, ledger = f"limits+redis+socket://{server.socket}", Ledger(directory / "ledger")
    herd, load = Herd(url, "battle", ledger), Load(url, "battle", ledger)
    try:
        for _ in range(consumers):
            herd.add()
        load.start()
        wait_until(ledger.taken, "the consumers are up")
        for blow in blows:
            time.sleep(random.random() * 0.1)  # when, is what chance decides here
            if blow == "kill":
                herd.kill_one()
            else:
                server.kill()
                server.start()
            _wait_for_more(ledger)
        load.stopped.set()
        load.join()
        certain = set(range(load.published)) - load.unsure
        wait_until(lambda: certain <= ledger.taken(), "all are taken", within=60)
        wait_until(lambda: not _unacked(server), "all are acknowledged", within=60)
    except AssertionError as error:
        print(f"{error}; {judge(ledger, load.published, herd.killed, load.unsure)}", file=sys.stderr)
        raise
    finally:
        load.stopped.set()
        herd.stop()
    return judge(ledger, load.published, herd.killed, load.unsure)


def _wait_for_more(ledger: Ledger) -> None:
    before = ledger.path.stat().st_size
    wait_until(lambda: ledger.path.stat().st_size > before, "others go on", within=60)


def _unacked(server: RedisServer) -> list[Any]:
    with server.client() as client:
        return list(client.scan_iter("*unacked:*"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--restarts", type=int, default=0, help="so often Redis itself is killed, and started again")
    parser.add_argument("--consumers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    options = {"restarts": given.restarts, "consumers": given.consumers, "seed": given.seed}
    with durable_server() as server, tempfile.TemporaryDirectory() as directory:
        verdict = rampage(server, Path(directory), given.kills, **options)
    print(verdict)
    return 0 if verdict.is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
