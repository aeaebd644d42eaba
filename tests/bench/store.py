"""What the store costs, as ratios measured in one run: `python -m tests.bench.store`, or `make bench-store`.

Each Redis found on this machine is measured on private servers. A missed goal is said, not raised, unless `--check`
asks for it. docs/benchmarks.md says what the lines mean.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from tests.bench.report import Row, render
from tests.bench.rounds import Block, Spread, interleave, on_client, on_server, say, spread
from tests.bench.shares import shares
from tests.bench.world import MESSAGE, ONE, THREE, THREE_SLOTS, World
from tests.bench.worst import worst_cases
from tests.redis_server import find_servers

PAIR_GOAL = 12.0
"""Empty scripts that an admit+release pair over three links may cost the server."""

GROWTH_GOAL = 1.2
"""Times what it costs with nobody waiting and no other keys."""

CLIENT_GOAL = 1.5
"""PINGs that one call may cost the client."""

MEMORY_GOAL = 2500.0
"""Bytes for a parked message of 1024, everything included."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything: the whole run takes minutes, the quick one seconds, and is that much less exact."""

    seconds: float
    """What each comparison takes; that of the fuller stores, which has most variants, twice as much."""
    units: int
    some: int
    many: int
    parked: int


FULL = Scale(seconds=15, units=50, some=1_000, many=100_000, parked=10_000)
QUICK = Scale(seconds=2.5, units=30, some=1_000, many=10_000, parked=3_000)


def server_time(binary: str, scale: Scale) -> Iterator[Row]:
    section = "Server time of an admit+release pair"
    with World(binary) as world:
        script = partial(on_server, world.client)
        blocks: dict[str, Block] = {
            "empty": script(world.empties, "evalsha", times=5),
            "counts": script(world.counts, "incr", "decr", times=3),
            "slots and rate": script(partial(world.pairs, links=THREE), "evalsha"),
            "three slots": script(partial(world.pairs, links=THREE_SLOTS), "evalsha"),
            "one link": script(partial(world.pairs, links=ONE), "evalsha"),
            "no message": script(partial(world.pairs, links=THREE, message=b""), "evalsha"),
        }
        cost = interleave("pairs", blocks, seconds=scale.seconds, units=scale.units)
    mixed, slots = "Concurrency, Concurrency, RateLimit", "Concurrency three times"
    for name, text, goal in (
        ("slots and rate", mixed, PAIR_GOAL),
        ("three slots", slots, PAIR_GOAL),
        ("one link", "Concurrency", None),
        ("no message", f"{mixed}, its 1 kB message not sent along", None),
    ):
        yield Row(section, text, spread(cost[name], cost["empty"]), "empty scripts", goal)
    for name, text in (("slots and rate", mixed), ("three slots", slots)):
        yield Row(section, text, spread(cost[name], cost["counts"]), "INCR+DECR")
    for name, text in (("slots and rate", mixed), ("empty", "an empty script")):
        yield Row(section, text, spread(cost[name]), "µs")


def growth(binary: str, scale: Scale) -> Iterator[Row]:
    """Each state is a server of its own, and they take turns."""
    some, many = scale.some, scale.many
    few = 10
    with ExitStack() as stack:
        still = stack.enter_context(World(binary, others=1))
        twin = stack.enter_context(World(binary, others=1))
        waited = {n: stack.enter_context(World(binary, others=1, waiters=n)) for n in (few, some, many)}
        beside = {n: stack.enter_context(World(binary, others=n)) for n in (some, many)}

        def pair(world: World) -> Block:
            return on_server(world.client, partial(world.pairs, links=THREE), "evalsha")

        blocks: dict[str, Block] = {"still": pair(still), "twin": pair(twin)}
        for n in (some, many):
            blocks[f"pair, waiters {n}"] = pair(waited[n])
            blocks[f"pair, others {n}"] = pair(beside[n])
        for n, world in waited.items():
            blocks[f"turn, waiters {n}"] = on_server(world.client, world.turns, "evalsha")
        cost = interleave("lines and keys", blocks, seconds=2 * scale.seconds, units=scale.units)
    base = cost["still"]
    section = "Server time of the same pair in a fuller store, against nobody waiting and 1 other key"
    yield Row(section, "the same state once more (what the machine's noise is)", spread(cost["twin"], base), "times")
    for n, goal in ((some, None), (many, GROWTH_GOAL)):
        text = f"{n:,} wait at another key"
        yield Row(section, text, spread(cost[f"pair, waiters {n}"], base), "times", goal)
    for n, goal in ((some, None), (many, GROWTH_GOAL)):
        yield Row(section, f"{n:,} other keys in use", spread(cost[f"pair, others {n}"], base), "times", goal)
    shortest = cost[f"turn, waiters {few}"]
    section = f"Server time of a turn on the waited key (release, fetch, admit, park), against a line of {few}"
    for n, goal in ((some, None), (many, GROWTH_GOAL)):
        yield Row(section, f"{n:,} wait", spread(cost[f"turn, waiters {n}"], shortest), "times", goal)
    yield Row(section, f"{few} wait", spread(shortest, base), "pairs where nobody waits")


def client_time(binary: str, scale: Scale) -> Iterator[Row]:
    section = "Client CPU of one call"
    with World(binary) as world:
        blocks: dict[str, Block] = {
            "client.ping()": on_client(world.pings),
            "bare PING": on_client(world.prepared_pings),
            "admit 3": on_client(partial(world.admits, links=THREE)),
            "admit 3 lean": on_client(partial(world.admits, links=THREE, message=b"")),
            "admit 1": on_client(partial(world.admits, links=ONE)),
            "release 3": on_client(partial(world.releases, links=THREE)),
        }
        cost = interleave("client", blocks, seconds=scale.seconds, units=scale.units)
    for name, text in (
        ("admit 3", "Store.admit, three links, with a message of 1 kB"),
        ("admit 3 lean", "Store.admit, three links, message not sent along"),
        ("admit 1", "Store.admit, one link, with a message of 1 kB"),
        ("release 3", "Store.release"),
    ):
        yield Row(section, text, spread(cost[name], cost["client.ping()"]), "client.ping()", CLIENT_GOAL)
    for name, text in (("admit 3", "Store.admit, three links, with a message of 1 kB"), ("release 3", "Store.release")):
        yield Row(section, text, spread(cost[name], cost["bare PING"]), "prepared PINGs")
    yield Row(section, "client.ping()", spread(cost["client.ping()"]), "µs")


def memory(binary: str, scale: Scale) -> Iterator[Row]:
    section = "Memory"
    with World(binary, waiters=1) as world:
        say(f"  memory: parking {scale.parked:,} messages")
        before = world.used_memory()
        for _ in range(scale.parked):
            world.park()
        each = (world.used_memory() - before) / scale.parked
    text = f"a parked message of {len(MESSAGE):,} bytes, of {scale.parked:,}, three links"
    yield Row(section, text, Spread(each, each, each), "bytes", MEMORY_GOAL, below=True)


def groups(binary: str, scale: Scale) -> Iterator[Row]:
    return shares(binary, scale.seconds, scale.units, scale.many)


def worst(binary: str, scale: Scale) -> Iterator[Row]:
    return worst_cases(binary, scale.many)


def measure(label: str, binary: str, scale: Scale, only: str | None) -> list[Row]:
    rows: list[Row] = []
    for part in (server_time, growth, groups, client_time, memory, worst):
        if only not in (None, part.__name__):
            continue
        say(f"Redis {label}: {part.__name__.replace('_', ' ')}")
        rows += part(binary, scale)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.store", description="What the store costs.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, shorter lines: less exact")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    parser.add_argument("--redis", metavar="VERSION", help="only this one of the servers found")
    parser.add_argument("--only", metavar="PART", help="server_time, growth, groups, client_time, memory or worst")
    options = parser.parse_args()
    servers = {k: v for k, v in find_servers().items() if options.redis in (None, k)}
    if not servers:
        parser.error(f"no such redis-server here; there is: {', '.join(find_servers()) or 'none'}")
    started = time.monotonic()
    scale = QUICK if options.quick else FULL
    results = {label: measure(label, binary, scale, options.only) for label, binary in servers.items()}
    say(f"done in {time.monotonic() - started:.0f} s")
    if options.json:
        print(json.dumps({label: [row.as_json() for row in rows] for label, rows in results.items()}, indent=1))
    else:
        print("\n\n".join(f"### Redis {label}\n\n{render(rows)}" for label, rows in results.items()))
    missed = any(row.met is False for rows in results.values() for row in rows)
    return int(options.check and missed)


if __name__ == "__main__":
    sys.exit(main())
