"""Chains: declarations bound to a task, and what they become for one call."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from celery_limits import Concurrency, DeclarationError, FloatingConcurrency, RateLimit, ResolutionError
from celery_limits.declare.chain import (
    AnyLink,
    ConcurrencyLink,
    Declared,
    FloatingLink,
    Link,
    RateLink,
    declare,
    resolve_chain,
)
from celery_limits.declare.limits import Limit


def ship(tenant_id: Any = None, order_id: Any = None, **options: Any) -> None: ...


def declared(*limits: Limit, task: Callable[..., object] = ship) -> Declared:
    return declare("shop.ship", limits, inspect.signature(task))


def resolved(*limits: Limit, args: Any = (), kwargs: Any = None) -> tuple[Link, ...]:
    return resolve_chain(declared(*limits), args, kwargs)


def floating(key: str, **changes: Any) -> FloatingConcurrency:
    return FloatingConcurrency(key, **{"default": 10, "refresh": "shop:slots", "every": 30, **changes})


class TestDeclare:
    def test_a_template_that_names_an_unknown_argument_fails_when_the_task_is_declared(self) -> None:
        def task(tenant_id: int, order_id: int) -> None: ...

        with pytest.raises(DeclarationError) as caught:
            declared(Concurrency("tenant:{tennant_id}", 3), task=task)
        assert str(caught.value) == (
            "task 'shop.ship', Concurrency('tenant:{tennant_id}', 3): the key template names {tennant_id}, "
            "not an argument of the task; its arguments: tenant_id, order_id"
        )

    @pytest.mark.parametrize(
        ("limits", "says"),
        [
            ([], "the list of limits is empty"),
            (None, "limits must be a list of limits, not None"),
            (Concurrency("k", 1), "limits must be a list of limits, not Concurrency('k', 1)"),
            ("tenant", "limits must be a list of limits, not 'tenant'"),
            ([3], "3 is not a Concurrency"),
            ([Concurrency], "is not a Concurrency"),
            ([Concurrency(f"k{n}", 1) for n in range(17)], "17 limits; at most 16"),
            ([Concurrency("k", 1), Concurrency("k", 2)], "one key twice"),
            ([Concurrency("k:{tenant_id}", 1), Concurrency("k:{tenant_id}", 1)], "one key twice"),
            ([Concurrency(ship, 1), Concurrency(ship, 1)], "one key twice"),
            ([Concurrency("k", 1), RateLimit("k", "1/s")], "two kinds of limit"),
            ([Concurrency("k", 1), floating("k")], "two kinds of limit"),
            ([Concurrency("k:{tenant_id}", 1), floating("k:{order_id}")], "two kinds of limit"),
            (
                [floating("k:{tenant_id}"), floating("k:{order_id}", refresh="shop:others")],
                "two refresh functions",
            ),
        ],
    )
    def test_a_list_that_can_not_work_is_refused_with_the_task(self, limits: Any, says: str) -> None:
        with pytest.raises(DeclarationError) as caught:
            declare("shop.ship", limits, inspect.signature(ship))
        assert "task 'shop.ship'" in str(caught.value)
        assert says in str(caught.value)

    def test_sixteen_links_are_fine(self) -> None:
        limits = [Concurrency(f"k{n:02}", 1) for n in range(16)]
        assert [link.key for link in resolved(*limits)] == [f"k{n:02}" for n in range(16)]

    def test_shows_task_and_limits(self) -> None:
        assert repr(declared(Concurrency("k", 1))) == ("Declared(task='shop.ship', limits=(Concurrency('k', 1),))")


class TestResolve:
    def test_a_call_becomes_links_in_the_order_declared(self) -> None:
        links = resolved(
            Concurrency("tenant:{tenant_id}", 3, weight=2, on_full="discard"),
            floating("warehouse", every=30),
            RateLimit("carrier-api", "100/m", burst=20),
            args=(42,),
        )
        assert links == (
            ConcurrencyLink(key="tenant:42", limit=3, weight=2, on_full="discard"),
            FloatingLink(key="warehouse", default=10, every=30.0, refresh="shop:slots"),
            RateLink(key="carrier-api", rate="100/m", burst=20, cost=1),
        )
        assert links[2].kind == "rate"
        assert links[2].interval_us == 600_000.0

    @pytest.mark.parametrize(("args", "kwargs"), [((7,), None), ([7], {}), (None, {"tenant_id": 7})])
    def test_arguments_come_as_celery_has_them(self, args: Any, kwargs: Any) -> None:
        assert resolved(Concurrency("{tenant_id}", 1), args=args, kwargs=kwargs)[0].key == "7"

    def test_callables_are_called_as_the_body_is(self) -> None:
        calls = []

        def note(result: object) -> Callable[..., object]:
            def function(*args: object, **kwargs: object) -> object:
                calls.append((args, kwargs))
                return result

            return function

        links = resolved(
            Concurrency(note("key"), note(9), weight=note(2)),
            floating("floating", weight=note(3)),
            RateLimit("rate", note("5/h"), burst=8, cost=note(4)),
            args=(1, 2),
            kwargs={"x": 3},
        )
        assert calls == [((1, 2), {"x": 3})] * 6
        assert links == (
            ConcurrencyLink(key="key", limit=9, weight=2),
            FloatingLink(key="floating", default=10, every=30.0, refresh="shop:slots", weight=3),
            RateLink(key="rate", rate="5/h", burst=8, cost=4),
        )

    def test_a_rate_without_burst_has_room_for_exactly_one_call(self) -> None:
        assert resolved(RateLimit("k", "1/s"))[0] == RateLink(key="k", rate="1/s", burst=1)
        assert resolved(RateLimit("k", "1/s", cost=lambda: 7))[0] == RateLink(key="k", rate="1/s", burst=7, cost=7)

    def test_a_rate_of_zero_has_no_interval(self) -> None:
        link = resolved(RateLimit("k", "0/m"))[0]
        assert isinstance(link, RateLink)
        assert link.interval_us is None

    def test_a_limit_of_zero_holds_back_any_weight(self) -> None:
        assert resolved(Concurrency("k", lambda: 0, weight=3))[0] == ConcurrencyLink(key="k", limit=0, weight=3)

    @pytest.mark.parametrize(
        ("limit", "says"),
        [
            (Concurrency("tenant:{tenant_id}", 1), "argument 'tenant_id' is None"),
            (Concurrency("{missing}", 1), "argument 'missing' is missing"),
            (Concurrency(lambda: None, 1), "the key is None"),
            (Concurrency(lambda: "", 1), "the key is an empty string"),
            (Concurrency(lambda: {"a": 1}, 1), "the key is {'a': 1} (dict)"),
            (Concurrency(lambda: ["a"], 1), "the key is ['a'] (list)"),
            (Concurrency(lambda: "a\nb", 1), "control character U+000A at 1: 'a\\nb'"),
            (Concurrency(lambda: "\ud800", 1), "surrogate U+D800 at 0"),
            (Concurrency(lambda: "k" * 300, 1), "300 bytes long, at most 200"),
            (Concurrency(lambda: 1 / 0, 1), "for the key raised ZeroDivisionError"),
            (Concurrency(lambda needed: "k", 1), "for the key raised TypeError"),
            (Concurrency("k", lambda: -1), "limit must be between 0 and 1000000000, not -1"),
            (Concurrency("k", lambda: 2.5), "limit must be a whole number of 0 or more, not 2.5"),
            (Concurrency("k", lambda: True), "limit must be a whole number of 0 or more, not True"),
            (Concurrency("k", lambda: float("nan")), "not nan"),
            (Concurrency("k", lambda: float("inf")), "not inf"),
            (Concurrency("k", lambda: None), "not None"),
            (Concurrency("k", lambda: dict[str, int]()["x"]), "for the limit raised KeyError('x')"),
            (Concurrency("k", 1, weight=lambda: 0), "weight must be between 1 and 10000, not 0"),
            (Concurrency("k", 2, weight=lambda: 3), "weight 3 is more than limit 2"),
            (RateLimit("k", lambda: "often"), "rate 'often' can't be read"),
            (RateLimit("k", lambda: None), "rate None can't be read"),
            (RateLimit("k", lambda: -1), "rate -1 is out of range"),
            (RateLimit("k", "1/s", cost=lambda: 0), "cost must be between 1 and 10000, not 0"),
            (RateLimit("k", "1/s", burst=2, cost=lambda: 3), "cost 3 is more than burst 2"),
            (RateLimit("k", lambda: "1/h", burst=10**9), "century"),
        ],
        ids=repr,
    )
    def test_what_can_not_be_worked_out_quotes_task_limit_and_value(self, limit: Limit, says: str) -> None:
        with pytest.raises(ResolutionError) as caught:
            resolved(Concurrency("fine", 1), limit)
        assert str(caught.value).startswith(f"task 'shop.ship', {limit!r}: ")
        assert says in str(caught.value)
        assert len(str(caught.value)) < 400

    def test_what_a_callable_raised_is_kept_as_the_cause(self) -> None:
        with pytest.raises(ResolutionError) as caught:
            resolved(Concurrency(lambda: 1 / 0, 1))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    @pytest.mark.parametrize(
        "other",
        [Concurrency("{order_id}", 1), RateLimit("{order_id}", "1/s"), Concurrency(lambda *_: "api", 1)],
    )
    def test_one_key_twice_at_run_time_is_an_error(self, other: Limit) -> None:
        with pytest.raises(ResolutionError, match=r"task 'shop.ship': one key twice in a chain, 'api'"):
            resolved(Concurrency("api", 1), other, args=(1, "api"))

    def test_equal_numbers_of_other_types_do_not_leak_through_the_cache(self) -> None:
        assert resolved(Concurrency("cached", 1))[0] == ConcurrencyLink(key="cached", limit=1)
        with pytest.raises(ResolutionError):
            resolved(Concurrency("cached", lambda: True))
        with pytest.raises(ResolutionError):
            resolved(Concurrency("cached", lambda: 1.0))


class TestOneShape:
    """Two accounts of one transfer."""

    TRANSFER = (Concurrency("account:{src}", 1), Concurrency("account:{dst}", 1))

    @pytest.mark.parametrize(("src", "dst"), [("a", "b"), ("b", "a")])
    def test_guarantee_12_links_of_one_shape_are_walked_in_key_order(self, src: str, dst: str) -> None:
        links = resolved(*self.TRANSFER, kwargs={"src": src, "dst": dst})
        assert [link.key for link in links] == ["account:a", "account:b"]

    def test_others_keep_their_places(self) -> None:
        links = resolved(
            Concurrency("bank", 9),
            Concurrency("account:{src}", 1),
            RateLimit("api", "1/s"),
            Concurrency("account:{dst}", 2),
            RateLimit("audit", "1/s"),
            kwargs={"src": "z", "dst": "y"},
        )
        assert [link.key for link in links] == ["bank", "account:y", "api", "account:z", "audit"]
        assert links[1] == ConcurrencyLink(key="account:y", limit=2)

    def test_the_order_is_that_of_the_bytes(self) -> None:
        links = resolved(*self.TRANSFER, kwargs={"src": "\U0001f69a", "dst": "\uffe5"})
        keys = [link.key for link in links]
        assert keys == sorted(keys, key=str.encode)

    @pytest.mark.parametrize(
        ("one", "other", "merged"),
        [
            (
                Concurrency("k:{src}", 5, max_waiting=3),
                Concurrency("k:{dst}", 4, weight=2, on_full="discard"),
                ConcurrencyLink(key="k:x", limit=4, weight=2, on_full="discard", max_waiting=3),
            ),
            (
                Concurrency("k:{src}", 5),
                Concurrency("k:{dst}", 5, max_waiting=0),
                ConcurrencyLink(key="k:x", limit=5, max_waiting=0),
            ),
            (
                floating("k:{src}", default=4, every=10, weight=2),
                floating("k:{dst}", default=3, every=20),
                FloatingLink(key="k:x", default=3, every=10.0, refresh="shop:slots", weight=2),
            ),
            (
                RateLimit("k:{src}", "60/m", burst=9, cost=2),
                RateLimit("k:{dst}", "2/s", burst=3),
                RateLink(key="k:x", rate="60/m", burst=3, cost=2),
            ),
            (
                RateLimit("k:{src}", "1/s"),
                RateLimit("k:{dst}", "1/s", cost=2),
                RateLink(key="k:x", rate="1/s", burst=2, cost=2),
            ),
            (
                RateLimit("k:{src}", "0/m"),
                RateLimit("k:{dst}", "1/h"),
                RateLink(key="k:x", rate="0/m", burst=1),
            ),
        ],
    )
    def test_a_transfer_to_oneself_is_one_link_the_stricter_of_both(
        self, one: Limit, other: Limit, merged: Link
    ) -> None:
        same = {"src": "x", "dst": "x"}
        assert resolved(one, other, kwargs=same) == (merged,)
        assert resolved(other, one, kwargs=same) == (merged,)

    def test_a_merge_that_could_never_run_is_an_error(self) -> None:
        with pytest.raises(ResolutionError, match="weight 3 is more than limit 1"):
            resolved(
                Concurrency("k:{src}", 1),
                Concurrency("k:{dst}", 5, weight=3),
                kwargs={"src": "x", "dst": "x"},
            )

    @given(st.lists(st.sampled_from("abcd"), min_size=4, max_size=4))
    def test_any_four_accounts_are_walked_in_order_and_once_each(self, accounts: list[str]) -> None:
        names = ["one", "two", "three", "four"]
        links = resolved(*[Concurrency(f"{{{n}}}", 1) for n in names], kwargs=dict(zip(names, accounts, strict=True)))
        assert [link.key for link in links] == sorted(set(accounts))


LINKS: list[Link] = [
    ConcurrencyLink(key="k", limit=1),
    ConcurrencyLink(key="k", limit=0, weight=10_000, on_full="discard", max_waiting=10**9),
    FloatingLink(key="k", default=0, every=0.001, refresh="a.b:C.d"),
    RateLink(key="k", rate="0.5/h", burst=10_000, cost=10_000),
]


class TestLinks:
    @pytest.mark.parametrize("link", LINKS, ids=repr)
    def test_are_immutable_hashable_values(self, link: Link) -> None:
        assert link.wire  # a cached property must not show in comparisons
        twin = type(link)(**link.wire)
        assert twin == link
        assert hash(twin) == hash(link)
        assert pickle.loads(pickle.dumps(link)) == link
        with pytest.raises(ValidationError):
            link.key = "other"  # type: ignore[misc]

    @pytest.mark.parametrize("link", LINKS, ids=repr)
    def test_on_the_wire_say_their_kind_first_and_no_defaults(self, link: Link) -> None:
        assert list(link.wire)[:2] == ["kind", "key"]
        assert TypeAdapter(AnyLink).validate_python(dict(link.wire)) == link
        assert link.wire.get("weight") != 1
        assert "max_waiting" not in link.wire or link.wire["max_waiting"] is not None

    @pytest.mark.parametrize(
        "fields",
        [
            {"key": "k", "limit": 1},
            {"kind": "mutex", "key": "k", "limit": 1},
            {"kind": "concurrency", "key": "k"},
            {"kind": "concurrency", "key": "", "limit": 1},
            {"kind": "concurrency", "key": "k\n", "limit": 1},
            {"kind": "concurrency", "key": 3, "limit": 1},
            {"kind": "concurrency", "key": "k", "limit": True},
            {"kind": "concurrency", "key": "k", "limit": "1"},
            {"kind": "concurrency", "key": "k", "limit": 1.0},
            {"kind": "concurrency", "key": "k", "limit": -1},
            {"kind": "concurrency", "key": "k", "limit": 10**9 + 1},
            {"kind": "concurrency", "key": "k", "limit": 1, "weight": 0},
            {"kind": "concurrency", "key": "k", "limit": 1, "weight": 2},
            {"kind": "concurrency", "key": "k", "limit": 10**9, "weight": 10_001},
            {"kind": "concurrency", "key": "k", "limit": 1, "on_full": "drop"},
            {"kind": "concurrency", "key": "k", "limit": 1, "max_waiting": -1},
            {"kind": "concurrency", "key": "k", "limit": 1, "burst": 1},
            {"kind": "floating", "key": "k", "default": 1, "every": 0, "refresh": "m:f"},
            {"kind": "floating", "key": "k", "default": 1, "every": float("nan"), "refresh": "m:f"},
            {"kind": "floating", "key": "k", "default": 1, "every": float("inf"), "refresh": "m:f"},
            {"kind": "floating", "key": "k", "default": 1, "every": True, "refresh": "m:f"},
            {"kind": "floating", "key": "k", "default": 1, "every": 1, "refresh": "os.system('x')"},
            {"kind": "rate", "key": "k", "rate": 5, "burst": 1},
            {"kind": "rate", "key": "k", "rate": "5", "burst": 1},
            {"kind": "rate", "key": "k", "rate": "5.0/s", "burst": 1},
            {"kind": "rate", "key": "k", "rate": "-5/s", "burst": 1},
            {"kind": "rate", "key": "k", "rate": "5/s"},
            {"kind": "rate", "key": "k", "rate": "5/s", "burst": 0},
            {"kind": "rate", "key": "k", "rate": "5/s", "burst": 1, "cost": 2},
            {"kind": "rate", "key": "k", "rate": "1/h", "burst": 10**9},
        ],
        ids=repr,
    )
    def test_refuse_what_no_declaration_could_have_made(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            TypeAdapter(AnyLink).validate_python(fields)
