"""Hostile or broken things in Redis, and arguments that can't be stored: a named error, nothing half-done.

A bad record never stops those behind it, a bad key no other key. What the server itself may say is in test_bad_server.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from celery_limits.declare.chain import Link
from celery_limits.errors import LimitError
from celery_limits.store import Store, StoreBroken, StoreError
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Corrupt, Parked, Released
from tests.store.actors import (
    ANY,
    HEAD,
    LINK,
    Clock,
    Worker,
    c,
    damage,
    f,
    holders,
    line_at,
    live_on,
    names_in,
    overwrite,
    r,
    raw_client,
    record_of,
    settle,
    sweep_all,
    used,
    wind_up,
)

A, B = c("a", 1), c("b", 1)
FIELDS = [*HEAD, *(f"first {name}" for name in LINK), *(f"second {name}" for name in LINK)]
RUBBISH = [b"zz\xff", b"", b"-1", b"1.5", b"nan", b"1e999", b"0x10"]
EMPTY_CHAIN = len(HEAD)

pytestmark = pytest.mark.leaves_traces


def _everything(store: Store, *, but: tuple[str, ...] = ("serial", "pulse")) -> dict[str, Any]:
    """All that is in Redis but for counters: a number that was drawn and not used harms nobody."""
    client = raw_client(store)
    return {name: client.dump(store.prefix + name) for name in names_in(store, "*") if name not in but}


def _let_all_run(store: Store, clock: Clock, w: Worker) -> list[str]:
    """Whatever comes of it, only our own errors; afterwards the audit can mend what is left."""
    started = wind_up(clock, w)
    audit(store, repair=True)
    assert audit(store) == []
    store.beat(w.name)
    return started + wind_up(clock, w)


# -- records --------------------------------------------------------------------------------------------------


def _second_link(kind: str) -> Link:
    if kind == "c":
        return B
    return r("api", "1/s") if kind == "r" else f("fl", 1)


@pytest.mark.parametrize("place", range(len(FIELDS)), ids=FIELDS)
def test_a_damaged_waiter_never_bars_the_one_behind_it(store: Store, clock: Clock, place: int) -> None:
    for kind, rubbish in itertools.product("crf" if FIELDS[place].startswith("second") else "c", RUBBISH):
        raw_client(store).flushall()
        w = Worker(store)
        w.deliver("first.n", A)
        w.deliver("bad.n", A, _second_link(kind))
        w.deliver("good.n", A)
        damage(store, "bad.n", place, rubbish)
        assert isinstance(w.finish("first.n"), Released), rubbish
        assert used(store, "a") <= 1
        assert "good.n" in _let_all_run(store, clock, w), rubbish


@pytest.mark.parametrize("place", range(len(HEAD), len(HEAD) + len(LINK)), ids=LINK)
def test_a_damaged_head_of_a_rates_line_never_bars_the_one_behind_it(store: Store, clock: Clock, place: int) -> None:
    for rubbish in RUBBISH:
        raw_client(store).flushall()
        w = Worker(store)
        for ticket in ("first.n", "bad.n", "good.n"):
            w.deliver(ticket, r("api", "1/s"))
        damage(store, "bad.n", place, rubbish)
        w.finish("first.n")
        live_on(clock, 3, w)
        assert "good.n" in _let_all_run(store, clock, w), rubbish


def test_a_weight_beyond_all_bounds_is_not_a_ticket(store: Store, clock: Clock) -> None:
    """A record that says a million slots would keep the server busy filling a set."""
    w = Worker(store)
    w.deliver("first.n", A)
    w.deliver("bad.n", A)
    damage(store, "bad.n", EMPTY_CHAIN + LINK.index("size"), b"1000000000")
    damage(store, "bad.n", EMPTY_CHAIN + LINK.index("weight"), b"200000")
    w.finish("first.n")
    assert holders(store, "a") == set()
    assert raw_client(store).hkeys(f"{store.prefix}aside") == [b"bad.n"]


@pytest.mark.parametrize("size", [b"inf", b"1e300", b"nan"])
def test_a_size_that_is_no_number_of_slots_is_not_a_ticket(store: Store, clock: Clock, size: bytes) -> None:
    w = Worker(store)
    w.deliver("first.n", A)
    w.deliver("bad.n", A)
    damage(store, "bad.n", EMPTY_CHAIN + LINK.index("size"), size)
    store.resize("a", 1)
    store.reset("a")
    assert holders(store, "a") == {"first.n"}, "nothing runs without a limit"
    w.finish("first.n")
    assert b"bad.n" in raw_client(store).hkeys(f"{store.prefix}aside")


def _verbs(store: Store, w: Worker) -> list[Callable[[], object]]:
    return [
        lambda: w.deliver("bad.n", A, B),
        lambda: store.release("bad.n", w.name, 1),
        lambda: store.release("bad.n", w.name, 1, back=True),
        lambda: w.pick_up(ANY),
        store.claim,
        lambda: settle(store, ["bad.n"]),
        lambda: store.explain("bad"),
        lambda: store.status("a"),
        lambda: store.cancel("bad"),
        lambda: sweep_all(store, w.name),
        lambda: audit(store),
    ]


_fields = st.lists(st.binary(max_size=12).filter(lambda b: b"\t" not in b), max_size=40).map(b"\t".join)
_changes = st.lists(st.tuples(st.integers(0, len(FIELDS) - 1), st.binary(max_size=8)), min_size=1, max_size=4)


# Shrinking takes minutes where a record makes someone wait for ever, and says little: the rubbish is small already.
@settings(
    max_examples=100,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(record=st.one_of(st.binary(max_size=200), _fields, _changes), state=st.sampled_from(["running", "waiting"]))
def test_any_record_at_all_gives_a_named_outcome_or_error_from_every_verb(
    store: Store, clock: Clock, record: bytes | list[tuple[int, bytes]], state: str
) -> None:
    raw_client(store).flushall()
    w = Worker(store)
    if state == "waiting":
        w.deliver("first.n", A)
    w.deliver("bad.n", A, B)
    w.deliver("good.n", A)
    if isinstance(record, bytes):
        overwrite(store, "bad.n", record)
    else:
        for place, value in record:
            damage(store, "bad.n", place, value.replace(b"\t", b"_"))
    for verb in _verbs(store, w):
        with suppress(StoreError):
            verb()
        assert len(holders(store, "a") - {"bad.n"}) <= 1
    w.running.pop("bad.n", None)
    audit(store, repair=True)
    assert audit(store) == []
    assert "good.n" in [*w.running, *wind_up(clock, w)]


def test_a_delivery_of_a_damaged_ticket_is_corrupt_and_changes_nothing(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("t.n", A)
    overwrite(store, "t.n", b"rubbish")
    before = _everything(store)
    assert isinstance(w.deliver("t.n", A), Corrupt)
    assert _everything(store) == before


def test_releasing_a_damaged_ticket_frees_nothing_it_can_not_name(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("t.n", A)
    fields = record_of(store, "t.n")
    overwrite(store, "t.n", b"\t".join([*fields[:EMPTY_CHAIN], b""]))
    before = _everything(store)
    assert isinstance(w.finish("t.n"), Corrupt)
    assert _everything(store) == before


# -- keys of the wrong type -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["hold:c", "note:c", "task:t", "worker:w1", "rates", "serial", "line:c:1:d", "note:d", "alarms", "hold:d"]
)
def test_l5_a_key_of_the_wrong_type_fails_an_admission_without_a_trace(store: Store, clock: Clock, key: str) -> None:
    w, client = Worker(store), raw_client(store)
    w.deliver("in-d.n", c("d", 1))
    client.delete(store.prefix + key)
    client.rpush(store.prefix + key, "neither a hash nor a set nor a number")
    before = _everything(store, but=("serial", "pulse") if key != "serial" else ("pulse",))
    chain = (A, B, r("api", "1/s"), c("c", 1), c("d", 1))
    with pytest.raises(StoreBroken) as caught:
        w.deliver("t.n", *chain, expires=clock.now + 10**9)
    assert "WRONGTYPE" in str(caught.value)
    assert _everything(store, but=("serial", "pulse") if key != "serial" else ("pulse",)) == before


@pytest.mark.parametrize("key", ["note:a", "line:c:1:a", "task:behind-a"])
def test_a_broken_key_does_not_keep_the_waiters_of_another_from_waking(store: Store, clock: Clock, key: str) -> None:
    w, client = Worker(store), raw_client(store)
    w.deliver("t.n", A, B)
    w.deliver("behind-a.n", A)
    w.deliver("behind-b.n", B)
    client.delete(store.prefix + key)
    client.rpush(store.prefix + key, "rubbish")
    before, fence = _everything(store), w.running["t.n"]
    try:
        w.finish("t.n")
    except StoreBroken:
        if _everything(store) == before:  # all or nothing: it may be released once someone has looked after the key
            client.delete(store.prefix + key)
            assert isinstance(store.release("t.n", w.name, fence), Released)
    assert holders(store, "b") == {"behind-b.n"}


@pytest.mark.parametrize(
    "field", ["size", "rate", "paused", "f.size", "f.fresh", "f.lapse", "pace", "class:zz", "class:"]
)
@pytest.mark.parametrize("value", [b"zz\xff", b"nan", b""])
def test_a_damaged_note_lets_nothing_through_and_stops_no_other_key(
    store: Store, clock: Clock, field: str, value: bytes
) -> None:
    w, client = Worker(store), raw_client(store)
    w.deliver("runs.n", f("k", 1), B)
    w.deliver("waits.n", f("k", 1))
    w.deliver("behind-b.n", B)
    client.hset(f"{store.prefix}note:k", field, value)
    for verb in (lambda: w.deliver("new.n", f("k", 1)), lambda: store.status("k"), lambda: store.explain("waits")):
        with suppress(StoreError):
            verb()
    assert used(store, "k") <= 1
    fence = w.running["runs.n"]
    try:
        w.finish("runs.n")
    except StoreError:
        client.hdel(f"{store.prefix}note:k", field)
        store.release("runs.n", w.name, fence)
    assert holders(store, "b") == {"behind-b.n"}


def _audit_says(store: Store) -> str:
    try:
        return "\n".join(map(str, audit(store)))
    except StoreError as error:
        return str(error)


@pytest.mark.parametrize("kind", ["task", "hold", "line:c:1", "note", "ready", "worker"])
def test_the_audit_names_a_key_of_the_wrong_type(store: Store, clock: Clock, kind: str) -> None:
    """StoreBroken tells a person to run the audit, so that must not be what fails next."""
    w = Worker(store)
    w.deliver("t.n", A)
    raw_client(store).set(f"{store.prefix}{kind}:damaged", "rubbish")
    assert "damaged" in _audit_says(store)


def test_the_audit_copes_with_names_that_are_no_text(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("t.n", A)
    raw_client(store).hset(store.prefix.encode() + b"task:\xff", b"\xfe", b"rubbish")
    raw_client(store).hset(f"{store.prefix}hold:x", b"\xff.n", 1)
    assert "holder-without-ticket" in _audit_says(store)


# -- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    [
        {"rank": -1},
        {"rank": 256},
        {"rank": 10**9},
        {"expires": -5},
        {"cut": -1},
        {"cut": 10**9},
        {"delivery": "tab\there"},
        {"delivery": "line\nbreak"},
        {"queue": "tab\there"},
        {"ticket": "nodot"},
        {"ticket": ".n"},
        {"ticket": "t."},
        {"ticket": "tab\tbed.n"},
        {"ticket": "t.n:m"},
        {"ticket": "t.n#2"},
    ],
    ids=repr,
)
def test_what_can_not_be_stored_is_refused_or_runs_in_its_turn(store: Store, clock: Clock, odd: dict[str, Any]) -> None:
    w, more = Worker(store), dict(odd)
    ticket = more.pop("ticket", "t.n")
    w.deliver("first.n", A)
    before = _everything(store)
    try:
        outcome = w.deliver(ticket, A, **more)
    except (ValueError, LimitError):
        assert _everything(store) == before
        return
    if not isinstance(outcome, Parked):
        assert _everything(store) == before
        return
    w.deliver("last.n", A)
    w.finish("first.n")
    assert line_at(store, "a")
    assert sorted(wind_up(clock, w)) == sorted([ticket, "last.n"])


@pytest.mark.parametrize("worker", ["", "tab\tbed", "line\nbreak", "!", "w|pipe", "sp ace"])
def test_an_odd_worker_name_is_refused_or_works(store: Store, clock: Clock, worker: str) -> None:
    try:
        w = Worker(store, worker)
    except (ValueError, LimitError):
        assert names_in(store, "*") == []
        return
    assert isinstance(w.deliver("t1.n", A, late=True), Admitted)
    w.deliver("t2.n", A)
    survivor = Worker(store, "survivor")
    live_on(clock, store.policy.lease + 1, survivor)
    assert holders(store, "a") == {"t2.n"}
    assert survivor.pick_up(ANY) == ["t2.n"]
    wind_up(clock, survivor)


@pytest.mark.parametrize("size", [-1, 1.5, float("nan"), True, "zz", "5/fortnight", None])
def test_a_size_that_makes_no_sense_is_refused(store: Store, clock: Clock, size: Any) -> None:
    w = Worker(store)
    before = _everything(store)
    with pytest.raises((ValueError, TypeError, LimitError)):
        store.resize("a", size)
    assert _everything(store) == before
    wind_up(clock, w)


@pytest.mark.parametrize("namespace", ["", "a b", "{x}", "a}b", "a*", "x" * 101, "nul\0"])
def test_a_namespace_that_would_break_the_hash_tag_is_refused(store: Store, namespace: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        Store(store.client, namespace)
