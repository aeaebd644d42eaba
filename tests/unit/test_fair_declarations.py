"""`fair_by` and `share`: what is accepted, what is refused, how they resolve, and how they travel."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest

from celery_limits import Concurrency, DeclarationError, FloatingConcurrency, RateLimit, ResolutionError
from celery_limits.declare.chain import (
    ConcurrencyLink,
    FloatingLink,
    Link,
    RateLink,
    declare,
    resolve_chain,
    resolve_chunk,
)
from celery_limits.declare.limits import Limit
from celery_limits.declare.trust import lowered
from celery_limits.errors import CorruptChain
from celery_limits.message.header import Header, read_header
from celery_limits.store.record import chain_fields

Make = Callable[..., Limit]


def concurrency(**more: Any) -> Limit:
    return Concurrency("gpu", 8, **more)


def floating(**more: Any) -> Limit:
    return FloatingConcurrency("gpu", default=8, refresh="shop:size", every=30, **more)


def rate(**more: Any) -> Limit:
    return RateLimit("api", "10/s", **more)


KINDS = pytest.mark.parametrize("make", [concurrency, floating, rate])


def ship(tenant: Any, job: Any = 1) -> None: ...


def resolved(limit: Limit, *args: Any) -> Link:
    (link,) = resolve_chain(declare("shop.ship", [limit], inspect.signature(ship)), args, {})
    return link


@KINDS
def test_a_template_names_the_group_and_a_callable_its_share(make: Make) -> None:
    link = resolved(make(fair_by="{tenant}", share=lambda tenant, job=1: 3 if tenant == "gold" else 1), "gold")
    assert (link.group, link.share) == ("gold", 3.0)
    assert resolved(make(fair_by=lambda tenant, job=1: f"of {tenant}", share=0.5), 7).wire["group"] == "of 7"


@KINDS
def test_without_a_group_nothing_travels(make: Make) -> None:
    link = resolved(make(), "gold")
    assert (link.group, link.share) == (None, 1.0)
    assert not {"group", "share"} & set(link.wire)


@KINDS
@pytest.mark.parametrize("share", [0, -1, math.nan, math.inf, 10_001, 0.0001, True, "3", None])
def test_a_share_is_a_positive_number(make: Make, share: Any) -> None:
    with pytest.raises(DeclarationError, match=r"\(.*, \.\.\.\): share must be "):
        make(fair_by="{tenant}", share=share)


@KINDS
@pytest.mark.parametrize("share", [2, lambda *_: 2])
def test_a_share_needs_a_group(make: Make, share: Any) -> None:
    with pytest.raises(DeclarationError, match="share needs fair_by"):
        make(share=share)


@KINDS
@pytest.mark.parametrize("fair_by", ["", 3, "{}", "a\nb", "{tenant.name}", ["x"]])
def test_a_group_is_a_template_or_a_callable(make: Make, fair_by: Any) -> None:
    with pytest.raises(DeclarationError, match="fair_by: "):
        make(fair_by=fair_by)


def test_a_template_that_names_an_unknown_argument_fails_when_the_task_is_declared() -> None:
    with pytest.raises(DeclarationError, match=r"fair_by: the key template names \{tennant\}"):
        declare("shop.ship", [concurrency(fair_by="{tennant}")], inspect.signature(ship))


@pytest.mark.parametrize("value", [None, "", b"x", [], "x" * 201, "a\tb", "a\u200bb", "a\u202eb"])
def test_a_group_that_names_nothing_is_refused_when_it_is_resolved(value: Any) -> None:
    with pytest.raises(ResolutionError, match=r"shop\.ship"):
        resolved(concurrency(fair_by="{tenant}"), value)


@pytest.mark.parametrize("share", [0, math.nan, "3", None, True])
def test_a_share_that_a_callable_returns_is_checked(share: Any) -> None:
    with pytest.raises(ResolutionError, match="share must be"):
        resolved(concurrency(fair_by="{tenant}", share=lambda *_: share), "a")


def test_a_chunk_of_one_group_is_one_link_and_of_two_is_refused() -> None:
    declared = declare("shop.ship", [concurrency(fair_by="{tenant}")], inspect.signature(ship))
    (link,) = resolve_chunk(declared, [(("a", 1), {}), (("a", 2), {})])
    assert link.group == "a"
    with pytest.raises(ResolutionError, match="two groups, 'a' and 'b', at one key, 'gpu'; use smaller chunks"):
        resolve_chunk(declared, [(("a", 1), {}), (("b", 2), {})])


LINKS: list[Link] = [
    ConcurrencyLink(key="k", limit=3, group="a|b", share=2.5),
    FloatingLink(key="k", default=3, every=1.0, refresh="a:b", weight=2, on_full="discard", max_waiting=3, group="ü"),
    RateLink(key="k", rate="10/s", burst=2, group="x", share=0.1),
]


@pytest.mark.parametrize("link", LINKS)
def test_group_and_share_travel(link: Link) -> None:
    header = Header(ticket="t.1", links=(link,))
    assert read_header(header.dump()).links == (link,)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"group": ""}, "the group is empty"),
        ({"group": 3}, "string"),
        ({"group": "a\nb"}, "control character"),
        ({"share": 0}, "greater than or equal to 0.001"),
        ({"share": math.nan}, "finite"),
        ({"share": 1e9}, "less than or equal"),
        ({"group": None, "share": 2.0}, "without a group"),
    ],
)
def test_a_header_with_an_unsound_group_is_corrupt(change: dict[str, Any], says: str) -> None:
    header = Header(ticket="t.1", links=tuple(LINKS[:1])).dump()
    header["links"][0].update(change)
    with pytest.raises(CorruptChain, match=says):
        read_header(header)


def test_the_group_of_an_untrusted_header_counts_for_nothing() -> None:
    own = ConcurrencyLink(key="k", limit=3, group="mine", share=1.0)
    (link,) = lowered((own,), (ConcurrencyLink(key="k", limit=2, group="other", share=9.0),))
    assert (link.group, link.share, link.limit) == ("mine", 1.0, 2)  # type: ignore[union-attr]
    (link,) = lowered((LINKS[1],), (FloatingLink(key="k", default=2, every=1.0, refresh="a:b"),))
    assert link.group == "ü"


def test_the_scripts_get_share_and_group_behind_the_rest() -> None:
    extras = [chain_fields((link,)).links[4] for link in LINKS]
    assert extras == ["|2.5|a|b", "0 1000000 a:b|1|ü", "2|0.1|x"]
    assert [chain_fields((link,)).flags for link in (*LINKS, ConcurrencyLink(key="a|b", limit=1))] == [*"ggg", ""]
