"""A retry has begun: it is never discarded, and no line is longer for it, whoever says so being believed or proved."""

from __future__ import annotations

import pytest

from celery_limits.declare.chain import never_discarded
from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.begun import begun_seal
from celery_limits.store.outcomes import Admission, Admitted, Discarded, Parked
from tests.store.actors import Clock, Worker, c, f, names_in, raw_client, wind_up

SHORT = c("k", 1, max_waiting=1)
FLOATING = f("k", 1, max_waiting=1)
MARK = "-0123abcd"
"""What the gate appends to a ticket for the queue that its message came from."""


@pytest.mark.parametrize("link", [SHORT, FLOATING, c("k", 1, max_waiting=1, group="a", share=2.0)])
def test_retries_take_no_place_from_newcomers(store: Store, clock: Clock, link: Admission) -> None:
    w = Worker(store)
    again = never_discarded((link,))  # type: ignore[arg-type]
    outcomes = [type(w.deliver("t0.n", link))]  # type: ignore[arg-type]
    outcomes += [type(w.deliver(f"retry{i}.n", *again)) for i in range(3)]
    outcomes += [type(w.deliver(f"t{i}.n", link)) for i in (1, 2)]  # type: ignore[arg-type]
    assert outcomes == [Admitted, Parked, Parked, Parked, Parked, Discarded]
    assert raw_client(store).scard(f"{store.prefix}begun:k") == 3
    assert audit(store) == []
    w.finish("t0.n")
    assert raw_client(store).scard(f"{store.prefix}begun:k") == 2, "one of them has left the line"
    assert isinstance(w.deliver("t3.n", link), Discarded), "the newcomer still waits"  # type: ignore[arg-type]
    wind_up(clock, w)
    assert names_in(store, "begun:*") == []


def test_a_retry_waits_where_a_newcomer_is_discarded_if_its_seal_is_right(store: Store, clock: Clock) -> None:
    w = Worker(store)
    picky = c("k", 1, on_full="discard")
    w.deliver("first.n", picky)
    seal = begun_seal(store, "retry.n")
    assert len(seal) == 20
    forged = [seal[:-1] + ("0" if seal[-1] != "0" else "1"), begun_seal(store, "other.n"), "0" * 20]
    for i, claim in enumerate(forged):
        outcome = w.deliver(f"retry.n{MARK if i else ''}", picky, resolved=True, begun=claim)
        assert isinstance(outcome, Discarded), claim
    assert isinstance(w.deliver(f"another.n{MARK}", picky, resolved=True, begun=seal), Discarded), "of another ticket"
    parked = w.deliver(f"retry.n{MARK}", picky, resolved=True, begun=seal, delivery="d")
    assert isinstance(parked, Parked)
    w.finish("first.n")
    (fetched,) = w.fetch()
    assert isinstance(w.deliver(fetched.ticket, picky, resolved=True, begun=seal), Admitted)
    w.finish(fetched.ticket)
    wind_up(clock, w)


def test_the_audit_corrects_who_counts_as_begun(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("t0.n", SHORT)
    w.deliver("retry.n", *never_discarded((SHORT,)))
    w.deliver("t1.n", SHORT)
    client, key = raw_client(store), f"{store.prefix}begun:k"
    client.sadd(key, "t1.n", "nobody.n")
    client.srem(key, "retry.n")
    assert sorted(finding.code for finding in audit(store)) == ["hidden-line", "stray-entry", "stray-entry"]
    audit(store, repair=True)
    assert client.smembers(key) == {b"retry.n"}
    assert audit(store) == []
    wind_up(clock, w)
