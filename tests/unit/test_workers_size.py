"""WORKERS as a size: how it is declared, how it travels, what people see of it."""

from __future__ import annotations

import inspect
import pickle

import pytest

from celery_limits import WORKERS, Concurrency, DeclarationError, FloatingConcurrency, ResolutionError
from celery_limits.app.declared import Catalogue
from celery_limits.cli.shape import key_data, limit_data, limit_text
from celery_limits.declare.chain import ConcurrencyLink, declare, resolve_chain
from celery_limits.declare.deadlock import check_chains
from celery_limits.declare.trust import lowered
from celery_limits.message.call_limits import call_header, read_call
from celery_limits.message.header import Header, read_header
from celery_limits.store.record import chain_fields
from celery_limits.store.status import Status


def ship(tenant: str, to: str = "") -> None:
    """The task."""


def links_of(*limits: Concurrency, tenant: str = "acme", to: str = "") -> tuple[ConcurrencyLink, ...]:
    declared = declare("ship", list(limits), inspect.signature(ship))
    check_chains([declared])
    return resolve_chain(declared, (tenant, to), {})  # type: ignore[return-value]


FAIR = Concurrency("places", WORKERS, fair_by="{tenant}")


def test_it_is_said_as_it_is_declared() -> None:
    assert repr(FAIR) == "Concurrency('places', WORKERS, fair_by='{tenant}')"
    assert pickle.loads(pickle.dumps(WORKERS)) is WORKERS
    assert limit_data(FAIR)["limit"] == "workers"


def test_a_callable_may_choose_it() -> None:
    chosen = Concurrency("places", lambda tenant, to: WORKERS if tenant == "acme" else 2)
    assert [links_of(chosen, tenant=tenant)[0].limit for tenant in ("acme", "birch")] == ["workers", 2]


def test_it_travels_as_a_word() -> None:
    (link,) = links_of(FAIR)
    assert link.wire == {"kind": "concurrency", "key": "places", "limit": "workers", "group": "acme"}
    assert read_header(Header(ticket="a.b", links=(link,)).dump()).links == (link,)


def test_in_a_record_it_is_the_queue() -> None:
    chain = chain_fields(links_of(FAIR), "q:50%")
    assert chain.links == ("w", "places", "q%3A50%25", "1", "|1|acme")
    assert chain.flags == "g"


def test_limits_of_one_call_keep_it() -> None:
    assert read_call(call_header("ship", "id", [FAIR]), "id") == ("ship", (FAIR,))


def test_a_header_that_is_not_trusted_does_not_change_it() -> None:
    own = links_of(FAIR)
    claimed = (ConcurrencyLink(key="places", limit=1000),)
    assert lowered(own, claimed)[0] == own[0]
    assert lowered(claimed, own)[0] == claimed[0]


def test_a_floating_limit_refuses_it() -> None:
    with pytest.raises(DeclarationError, match=r"use Concurrency\(key, WORKERS\)"):
        FloatingConcurrency("places", default=WORKERS, refresh="shop:size", every=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["weight", "max_waiting"])
def test_nothing_else_has_this_size(option: str) -> None:
    with pytest.raises(DeclarationError, match="WORKERS"):
        Concurrency("places", 1, **{option: WORKERS})  # type: ignore[arg-type]


def test_one_task_can_not_have_it_beside_a_number_at_one_key() -> None:
    pair = (Concurrency("at:{tenant}", WORKERS), Concurrency("at:{to}", 2))
    with pytest.raises(ResolutionError, match="a number and WORKERS at one key"):
        links_of(*pair, to="acme")
    same = (Concurrency("at:{tenant}", WORKERS), Concurrency("at:{to}", WORKERS))
    assert [link.limit for link in links_of(*same, to="acme")] == ["workers"]


def status(**more: object) -> Status:
    base: dict[str, object] = {
        "key": "places",
        "running": 0,
        "waiting": 0,
        "size": None,
        "rate": None,
        "floating": None,
    }
    return Status(**{**base, "paused": False, "now": 1.0, "next_token": None, **more})  # type: ignore[arg-type]


def test_people_see_the_word_and_the_number() -> None:
    used = status(kind="concurrency", declared=16, follows_workers=True)
    assert limit_text(used) == "workers (16)"
    assert (key_data(used)["limit"], key_data(used)["follows"]) == (16, "workers")
    resized = status(kind="concurrency", declared=16, follows_workers=True, size=3)
    assert (limit_text(resized), key_data(resized)["follows"]) == ("3", None)


def test_a_key_that_nobody_uses_is_known_by_its_declaration() -> None:
    catalogue = Catalogue([declare("ship", [FAIR], inspect.signature(ship))])
    assert limit_text(catalogue.complete(status())) == "workers"
