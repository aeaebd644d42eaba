"""What declarations say of a key that nobody uses, and which key a misspelt one may have been meant for."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from celery_limits import Concurrency, FloatingConcurrency, RateLimit
from celery_limits.app.declared import Catalogue
from celery_limits.declare.chain import declare
from celery_limits.declare.limits import Limit
from celery_limits.store.status import Status


def _by_hand(tenant: int) -> str:
    return f"hand:{tenant}"


LIMITS: dict[str, Limit] = {
    "fixed": Concurrency("warehouse", 7),
    "tenant": Concurrency("tenant:{tenant}", 3),
    "closer": Concurrency("tenant:{tenant}:printer", 1),
    "braces": Concurrency("{{odd}}", 2),
    "called": Concurrency(_by_hand, 5),
    "sized": Concurrency("sized", lambda tenant: tenant),
    "floating": FloatingConcurrency("float", default=4, refresh="shop:size", every=30),
    "rate": RateLimit("api", "100/m", burst=20),
    "cost": RateLimit("api:{tenant}", "1/s", cost=2),
    "any": RateLimit("any", lambda tenant: "1/s"),
}


@pytest.fixture
def catalogue() -> Catalogue:
    signature = inspect.signature(lambda tenant: None)
    return Catalogue([declare(name, [limit], signature) for name, limit in LIMITS.items()])


def _quiet(key: str, **more: Any) -> Status:
    nothing: dict[str, Any] = {"running": 0, "waiting": 0, "size": None, "rate": None, "floating": None}
    return Status(key=key, **{**nothing, "paused": False, "now": 0.0, "next_token": None, **more})


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("warehouse", "fixed"),
        ("tenant:42", "tenant"),
        ("tenant:a:b", "tenant"),
        ("tenant:42:printer", "closer"),
        ("{odd}", "braces"),
        ("api", "rate"),
        ("api:7", "cost"),
    ],
)
def test_a_key_belongs_to_the_declaration_that_yields_it(catalogue: Catalogue, key: str, name: str) -> None:
    assert catalogue.limit_of(key) is LIMITS[name]


@pytest.mark.parametrize("key", ["", "warehouse2", "tenant:", "xtenant:1", "hand:1"])
def test_no_declaration_is_known_to_yield_another(catalogue: Catalogue, key: str) -> None:
    assert catalogue.limit_of(key) is None


@pytest.mark.parametrize(
    ("key", "kind", "limit", "burst"),
    [
        ("warehouse", "concurrency", 7, None),
        ("sized", "concurrency", None, None),
        ("float", "floating", 4, None),
        ("api", "rate", "100/m", 20),
        ("api:7", "rate", "1/s", 2),
        ("any", "rate", None, None),
        ("nobody's", None, None, None),
    ],
)
def test_a_quiet_key_is_of_the_kind_and_size_declared(
    catalogue: Catalogue, key: str, kind: str | None, limit: int | str | None, burst: int | None
) -> None:
    status = catalogue.complete(_quiet(key))
    assert (status.kind, status.limit, status.burst) == (kind, limit, burst)


def test_those_at_the_key_know_better(catalogue: Catalogue) -> None:
    there = _quiet("warehouse", kind="concurrency", declared=2)
    assert catalogue.complete(there) is there
    steered = catalogue.complete(_quiet("warehouse", size=1))
    assert (steered.limit, steered.declared) == (1, 7)


def test_keys_that_exist_whether_used_or_not(catalogue: Catalogue) -> None:
    assert catalogue.literals == ["warehouse", "{odd}", "sized", "float", "api", "any"]


@pytest.mark.parametrize(
    ("written", "meant"), [("warehose", "warehouse"), ("tenat:42", "tenant:42"), ("42", "tenant:42"), ("zzz", None)]
)
def test_a_misspelt_key_suggests_those_near(catalogue: Catalogue, written: str, meant: str | None) -> None:
    found = catalogue.near(written, ["tenant:42", "tenant:7"])
    assert found[:1] == ([meant] if meant else [])
