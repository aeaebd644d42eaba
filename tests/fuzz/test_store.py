"""Anyone can write into a shared Redis, and anyone can name a task: verbs on damaged records and with odd arguments.

Whatever is in the namespace, a verb answers with a named outcome or a `StoreError`; what is sound keeps its slot,
nothing runs beside it, and after a repair the lines move.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from celery_limits.errors import LimitError
from celery_limits.store import Policy, Store, StoreError
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Released
from tests.fuzz.budget import budget
from tests.redis_server import RedisServer
from tests.store.actors import Clock, Worker, c, drain_time, f, r, record_of, sweep_all
from tests.store.post import Post

POLICY = Policy(lease=10, grant_timeout=5, place_ttl=600, revoke_ttl=3600, refresh_timeout=20)
VICTIMS = ("waiting.1", "second.1", "granted.1", "away.1", "running.1", "ended.1")


def scene(server: RedisServer) -> tuple[Store, Clock, Worker, Worker]:
    """A holder, and a ticket in every other state, each on keys that they share."""
    client: Any = server.client()
    client.flushdb()
    clock = Clock()
    store = Store(client, "fuzz", POLICY, clock)
    good, bad = Worker(store, "good"), Worker(store, "bad")
    assert isinstance(good.deliver("holder.1", c("k", 1)), Admitted)
    bad.deliver("running.1", c("other", 2), r("rate", "1/s"))
    bad.deliver("waiting.1", c("other", 2), c("k", 1), expires=clock.now + 60_000_000)
    bad.deliver("second.1", c("k", 1), r("rate", "1/s"), queue="")
    bad.deliver("away.1", c("a", 1), f("floating", 1))
    bad.finish("away.1", back=True)
    bad.deliver("first.1", c("g", 1))
    bad.deliver("granted.1", c("g", 1))
    bad.finish("first.1")
    bad.deliver("ended.1", c("k", 1))
    store.cancel("ended")
    return store, clock, good, bad


def garbage(raw: bytes, where: int, value: bytes) -> bytes:
    return value


def cut_short(raw: bytes, where: int, value: bytes) -> bytes:
    return raw[: where % (len(raw) + 1)]


def without_field(raw: bytes, where: int, value: bytes) -> bytes:
    fields = raw.split(b"\t")
    del fields[where % len(fields)]
    return b"\t".join(fields)


def field_replaced(raw: bytes, where: int, value: bytes) -> bytes:
    fields = raw.split(b"\t")
    fields[where % len(fields)] = value
    return b"\t".join(fields)


def inserted(raw: bytes, where: int, value: bytes) -> bytes:
    where %= len(raw) + 1
    return raw[:where] + value + raw[where:]


damages = st.lists(
    st.tuples(
        st.sampled_from(VICTIMS),
        st.sampled_from([garbage, cut_short, without_field, field_replaced, inserted]),
        st.integers(0, 200),
        st.binary(max_size=12)
        | st.sampled_from([b"-1", b"x", b"\xff\xfe", b"", b"\t\t", b"\n", b"running", b"waiting"]),
    ),
    min_size=1,
    max_size=3,
)


def damage(store: Store, ticket: str, how: Callable[[bytes, int, bytes], bytes], where: int, value: bytes) -> None:
    client: Any = store.client
    task_id, _, nonce = ticket.rpartition(".")
    client.hset(f"{store.prefix}task:{task_id}", nonce, how(b"\t".join(record_of(store, ticket)), where, value))


VERBS: dict[str, Callable[[Store, Worker, str], object]] = {
    "admit": lambda store, worker, ticket: worker.deliver(ticket, c("k", 1)),
    "release": lambda store, worker, ticket: store.release(ticket, worker.name, worker.running.get(ticket, 1)),
    "back": lambda store, worker, ticket: store.release(ticket, worker.name, worker.running.get(ticket, 1), back=True),
    "cancel": lambda store, worker, ticket: store.cancel(ticket.rpartition(".")[0]),
    "fetch": lambda store, worker, ticket: worker.post.fetch(worker.name, 5),
    "claim": lambda store, worker, ticket: store.settle(store.claim(5)),
    "sweep": lambda store, worker, ticket: store.sweep(worker.name),
    "leave": lambda store, worker, ticket: store.leave("bad"),
    "resize": lambda store, worker, ticket: store.resize("other", 5),
    "pause": lambda store, worker, ticket: (store.pause("k"), store.resume("k")),
    "status": lambda store, worker, ticket: store.status("k"),
    "explain": lambda store, worker, ticket: store.explain(ticket.rpartition(".")[0]),
    "audit": lambda store, worker, ticket: audit(store),
}


def call(verb: str, store: Store, worker: Worker, ticket: str) -> None:
    with suppress(StoreError):  # named, and nothing was written
        VERBS[verb](store, worker, ticket)


@budget(120)
@given(damages, st.lists(st.tuples(st.sampled_from(sorted(VERBS)), st.sampled_from(VICTIMS)), min_size=1, max_size=8))
def test_damaged_records_harm_nobody_else(
    redis_server: RedisServer, harm: list[Any], calls: list[tuple[str, str]]
) -> None:
    store, clock, good, bad = scene(redis_server)
    for ticket, how, where, value in harm:
        if record_of(store, ticket):
            damage(store, ticket, how, where, value)
    for verb, ticket in calls:
        call(verb, store, bad, ticket)
    # What is sound has its slot still, and nothing runs beside it.
    assert store.held_by("good").keys() >= {"holder.1"}
    newcomer = good.deliver("newcomer.1", c("k", 1))
    assert not isinstance(newcomer, Admitted), "it runs beside the holder"
    # No line is stuck: when the holder ends and the damage is mended, the newcomer's turn comes.
    audit(store, repair=True)
    assert isinstance(good.finish("holder.1"), Released)
    for _ in range(12):
        audit(store, repair=True)
        sweep_all(store, "good")
        clock.pass_(3)
        store.beat("good")
        good.pick_up(c("k", 1))
        for entry in store.claim(20):
            if entry.reason is None:
                good.deliver(entry.ticket, c("k", 1), queue="")
            store.settle([entry])
        if "newcomer.1" in good.running:
            break
        for ticket in list(good.running):
            good.finish(ticket)
        store.leave("bad")
    assert "newcomer.1" in good.running, "its line is stuck"
    store.close()


ODD = st.text(max_size=20) | st.sampled_from(
    ["", ".", "a.", ".a", "a.b", "\t", "\n", "{", "}", "*", "x" * 2000, "\0", "é"]
)
NUMBERS = st.integers(-(2**63), 2**63) | st.sampled_from([0, 1, -1, 2**53, 10**9])


@budget(150)
@given(st.data())
def test_odd_arguments_are_refused_or_harmless(redis_server: RedisServer, data: st.DataObject) -> None:
    client: Any = redis_server.client()
    client.flushdb()
    clock = Clock()
    store = Store(client, "fuzz", POLICY, clock)
    good = Worker(store, "good")
    good.deliver("holder.1", c("k", 1))

    def odd() -> str:
        return data.draw(ODD)

    def number() -> int:
        return data.draw(NUMBERS)

    verbs: list[Callable[[], object]] = [
        lambda: store.admit(odd(), (c("k", 1),), odd(), delivery=odd(), queue=odd(), message=odd().encode()),
        lambda: store.admit(odd(), (c("k", 1),), "good", delivery=odd(), queue=odd(), message=b"m"),
        lambda: store.admit("t.1", (c("k", 1),), "good", delivery="d", message=b"m", rank=number(), cut=number()),
        lambda: store.admit("t.1", (c("k", 1),), "good", delivery="d", message=b"m", expires=number()),
        lambda: store.release(odd(), odd(), number()),
        lambda: store.release("holder.1", "good", number() or 7),
        lambda: store.release("holder.1", odd(), 1),
        lambda: store.cancel(f"x{odd()}"),
        lambda: Post(store).fetch(odd(), data.draw(st.integers(0, 100)), queue=odd()),
        lambda: store.beat(f"x{odd()}"),
        lambda: store.leave(f"x{odd()}"),
        lambda: store.sweep(odd()),
        lambda: store.refreshed(odd(), odd(), number(), data.draw(st.integers(0, 9) | st.none())),
        lambda: store.resize(f"x{odd()}", number()),
        lambda: store.resize(f"x{odd()}", odd()),
        lambda: store.pause(f"x{odd()}"),
        lambda: store.status(odd()),
        lambda: store.explain(odd()),
    ]
    for verb in data.draw(st.lists(st.sampled_from(range(len(verbs))), min_size=1, max_size=6)):
        try:
            verbs[verb]()
        except (StoreError, ValueError, LimitError):
            continue
    assert all(name.decode().startswith(store.prefix) for name in client.keys("*"))
    held = store.held_by("good")
    if held.get("holder.1") == good.running["holder.1"]:
        assert not isinstance(good.deliver("newcomer.1", c("k", 1)), Admitted)
        assert isinstance(good.finish("holder.1"), Released)
    drain_time(store, clock)
    assert audit(store) == []
    store.close()
