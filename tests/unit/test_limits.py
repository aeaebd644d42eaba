"""Declarations: what is accepted, what is refused on the spot, and how it is said."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_limits import Concurrency, DeclarationError, FloatingConcurrency, LimitError, RateLimit
from celery_limits.declare.limits import Limit, parse_rate
from celery_limits.errors import Refused, shorten


def slots() -> int:
    return 4


def by_tenant(tenant_id: str, *args: object, **kwargs: object) -> str:
    return f"tenant:{tenant_id}"


async def no_plain_function() -> int:
    return 1


class Sizes:
    def of_instance(self) -> int:
        return 1

    @classmethod
    def of_class(cls) -> int:
        return 1

    @staticmethod
    def static() -> int:
        return 1


class Tier(IntEnum):
    GOLD = 3


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> int:
        return 1


def floating(**changes: Any) -> FloatingConcurrency:
    return FloatingConcurrency(**{"key": "k", "default": 1, "refresh": "m:f", "every": 30, **changes})


EACH_KIND: list[Limit] = [
    Concurrency("tenant:{tenant_id}", 3),
    Concurrency(by_tenant, slots, weight=slots, on_full="discard"),
    FloatingConcurrency("warehouse", default=10, refresh="shop.capacity:slots", every=30),
    RateLimit("carrier-api", "100/m", burst=20, cost=2),
]


class TestValues:
    @pytest.mark.parametrize("limit", EACH_KIND, ids=repr)
    def test_a_limit_is_equal_by_value_hashable_and_survives_pickle(self, limit: Limit) -> None:
        for twin in (copy.copy(limit), pickle.loads(pickle.dumps(limit))):
            assert twin == limit
            assert hash(twin) == hash(limit)
            assert repr(twin) == repr(limit)

    @pytest.mark.parametrize("limit", EACH_KIND, ids=repr)
    def test_a_limit_is_immutable(self, limit: Limit) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            limit.key = "other"

    @pytest.mark.parametrize(
        ("limit", "shown"),
        [
            (EACH_KIND[0], "Concurrency('tenant:{tenant_id}', 3)"),
            (
                EACH_KIND[1],
                "Concurrency(<M:by_tenant>, <M:slots>, weight=<M:slots>, on_full='discard')",
            ),
            (
                EACH_KIND[2],
                "FloatingConcurrency('warehouse', default=10, refresh='shop.capacity:slots', every=30.0)",
            ),
            (EACH_KIND[3], "RateLimit('carrier-api', '100/m', burst=20, cost=2)"),
        ],
    )
    def test_repr_is_the_declaration_without_what_is_at_its_default(self, limit: Limit, shown: str) -> None:
        assert repr(limit).replace(__name__, "M") == shown

    def test_options_are_by_keyword_only(self) -> None:
        with pytest.raises(TypeError):
            Concurrency("k", 1, 2)  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            RateLimit("k", 1, 2)  # type: ignore[call-arg]

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (RateLimit("k", 10), RateLimit("k", "10/s")),
            (RateLimit("k", "0.50/m"), RateLimit("k", ".5/m")),
            (floating(every=timedelta(minutes=1)), floating(every=60)),
            (floating(refresh=slots), floating(refresh=f"{__name__}:slots")),
            (floating(refresh="a.b.c"), floating(refresh="a.b:c")),
            (Concurrency("k", Tier.GOLD), Concurrency("k", 3)),
        ],
    )
    def test_ways_of_saying_the_same_are_equal(self, one: Limit, other: Limit) -> None:
        assert one == other
        assert repr(one) == repr(other)

    def test_nothing_runs_is_a_legal_wish(self) -> None:
        assert Concurrency("k", 0).limit == 0
        assert Concurrency("k", 0, weight=5).weight == 5
        assert floating(default=0).default == 0
        assert RateLimit("k", "0/m").rate == "0/m"
        assert RateLimit("k", 0).rate == "0/s"

    def test_a_floating_default_may_be_less_than_the_weight_since_it_can_grow(self) -> None:
        assert floating(default=2, weight=5).weight == 5


NOT_SIZES = [
    -1,
    True,
    False,
    2.5,
    3.0,
    math.nan,
    math.inf,
    -math.inf,
    "3",
    Decimal(3),
    [3],
    10**10,
    10**5000,
]


class TestRefused:
    @pytest.mark.parametrize("size", NOT_SIZES, ids=shorten)
    @pytest.mark.parametrize(
        ("name", "make"),
        [
            ("limit", lambda value: Concurrency("k", value)),
            ("weight", lambda value: Concurrency("k", 10**9, weight=value)),
            ("max_waiting", lambda value: Concurrency("k", 1, max_waiting=value)),
            ("default", lambda value: floating(default=value)),
            ("weight", lambda value: floating(weight=value)),
            ("burst", lambda value: RateLimit("k", "1/s", burst=value)),
            ("cost", lambda value: RateLimit("k", "1/s", cost=value)),
        ],
    )
    def test_a_size_that_is_no_whole_number_in_range(
        self, name: str, make: Callable[[object], Limit], size: object
    ) -> None:
        with pytest.raises(DeclarationError) as caught:
            make(size)
        assert "('k', ...)" in str(caught.value)
        assert f"{name} must be " in str(caught.value)
        assert shorten(size) in str(caught.value)

    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (lambda: Concurrency("k", 1, weight=0), "weight must be between 1 and 10000, not 0"),
            (lambda: Concurrency("k", 10**9, weight=10_001), "weight must be between 1 and 10000"),
            (
                lambda: Concurrency("k", 2, weight=3),
                "weight 3 is more than limit 2, so the task could never run",
            ),
            (lambda: Concurrency("k", 1, on_full="drop"), "on_full must be 'wait', 'discard', 'replace' or 'preempt'"),  # type: ignore[arg-type]
            (lambda: Concurrency("k", 1, on_full="discard", max_waiting=5), "max_waiting=5 has no effect"),
            (lambda: floating(on_full="discard", max_waiting=0), "on_full='discard' never waits"),
            (lambda: Concurrency("k", 1, on_full=["wait"]), "on_full must be"),  # type: ignore[arg-type]
            (lambda: Concurrency("", 1), "the key is empty"),
            (lambda: Concurrency("k" * 201, 1), "201 bytes"),
            (lambda: Concurrency("k" * 199 + "é", 1), "201 bytes"),
            (lambda: Concurrency("k" * 200 + "{a}", 1), "the fixed part of the key template"),
            (lambda: Concurrency("{a}:" * 400, 1), "1600 characters"),
            (lambda: Concurrency("a\nb", 1), "control character"),
            (lambda: Concurrency("a\x00{b}", 1), "control character"),
            (lambda: Concurrency(42, 1), "the key must be a template"),  # type: ignore[arg-type]
            (lambda: Concurrency(None, 1), "the key must be a template"),  # type: ignore[arg-type]
            (lambda: Concurrency("{x.__class__}", 1), "reaches into a value"),
            (lambda: Concurrency(no_plain_function, 1), "coroutine function"),
            (lambda: Concurrency("k", no_plain_function), "coroutine function"),
            (lambda: Concurrency("k", Unhashable()), "can't be hashed"),
            (lambda: RateLimit("k", "1/s", burst=0), "burst must be between 1"),
            (lambda: RateLimit("k", "1/s", burst=2, cost=3), "cost 3 is more than burst 2"),
            (lambda: RateLimit("k", "1/h", burst=10**9), "more than a century"),
            (lambda: floating(every=0), "every must be between"),
            (lambda: floating(every=-1), "every must be between"),
            (lambda: floating(every=timedelta(0)), "every must be between"),
            (lambda: floating(every=math.nan), "every must be between"),
            (lambda: floating(every=math.inf), "every must be between"),
            (lambda: floating(every=True), "every must be seconds or a timedelta, not True"),
            (lambda: floating(every="30"), "every must be seconds or a timedelta, not '30'"),
        ],
    )
    def test_what_can_never_work(self, make: Callable[[], Limit], says: str) -> None:
        with pytest.raises(DeclarationError) as caught:
            make()
        assert says in str(caught.value)
        assert isinstance(caught.value, LimitError)
        assert isinstance(caught.value, ValueError)
        assert len(str(caught.value)) < 400

    def test_none_is_no_limit_weight_rate_or_cost(self) -> None:
        for make in (
            lambda: Concurrency("k", None),  # type: ignore[arg-type]
            lambda: Concurrency("k", 1, weight=None),  # type: ignore[arg-type]
            lambda: RateLimit("k", None),  # type: ignore[arg-type]
            lambda: RateLimit("k", 1, cost=None),  # type: ignore[arg-type]
        ):
            with pytest.raises(DeclarationError, match="None"):
                make()

    def test_callables_are_not_called_when_declared(self) -> None:
        def explode(*args: object, **kwargs: object) -> int:
            raise AssertionError

        Concurrency(explode, explode, weight=explode)
        RateLimit(explode, explode, cost=explode)


class TestRefresh:
    @pytest.mark.parametrize(
        ("given_as", "name"),
        [
            ("shop.capacity:slots", "shop.capacity:slots"),
            ("shop.capacity.slots", "shop.capacity:slots"),
            ("shop:Sizes.of_class", "shop:Sizes.of_class"),
            (slots, f"{__name__}:slots"),
            (Sizes.of_class, f"{__name__}:Sizes.of_class"),
            (Sizes.static, f"{__name__}:Sizes.static"),
        ],
    )
    def test_is_kept_as_a_name_that_can_be_imported(self, given_as: Any, name: str) -> None:
        assert floating(refresh=given_as).refresh == name

    @pytest.mark.parametrize(
        "refresh",
        [
            "",
            "slots",
            ":slots",
            "shop:",
            "shop..x:y",
            "shop:f()",
            "shop:f\n",
            "a b:c",
            "a:b:c",
            "__import__('os').system",
            "m:" + "f" * 200,
            lambda: 1,
            Sizes().of_instance,
            Sizes(),
            None,
            7,
        ],
    )
    def test_that_no_worker_could_import_is_refused(self, refresh: Any) -> None:
        with pytest.raises(DeclarationError, match="refresh must be"):
            floating(refresh=refresh)

    def test_a_local_function_is_refused_by_name(self) -> None:
        def local() -> int:
            return 1

        with pytest.raises(DeclarationError, match=r"worker can import by name, and .*<locals>.local is not"):
            floating(refresh=local)


class TestRates:
    @pytest.mark.parametrize(
        ("rate", "text", "interval_us"),
        [
            ("100/m", "100/m", 600_000.0),
            ("10/s", "10/s", 100_000.0),
            ("5/h", "5/h", 720_000_000.0),
            ("0.5/s", "0.5/s", 2_000_000.0),
            (".5/s", "0.5/s", 2_000_000.0),
            ("100.0/m", "100/m", 600_000.0),
            ("007/m", "7/m", 60_000_000 / 7),
            ("10", "10/s", 100_000.0),
            (10, "10/s", 100_000.0),
            (2.5, "2.5/s", 400_000.0),
            (1e-06, "0.000001/s", 1e12),
            (1e5, "100000/s", 10.0),
            ("0/m", "0/m", None),
            ("0.0/h", "0/h", None),
            (0, "0/s", None),
            (-0.0, "0/s", None),
        ],
    )
    def test_are_read_as_celery_reads_them(self, rate: object, text: str, interval_us: float | None) -> None:
        celery_time = pytest.importorskip("celery.utils.time")
        assert parse_rate(rate) == (text, interval_us)
        assert parse_rate(text) == (text, interval_us)
        per_second = celery_time.rate(rate)
        assert per_second == pytest.approx(1e6 / interval_us if interval_us else 0)

    @pytest.mark.parametrize(
        ("rate", "text", "interval_us"),
        [
            ("1000/d", "1000/d", 86_400_000.0),
            ("0.5/d", "0.5/d", 172_800_000_000.0),
            ("5000/w", "5000/w", 120_960_000.0),
            ("0/w", "0/w", None),
        ],
    )
    def test_of_days_and_weeks(self, rate: str, text: str, interval_us: float | None) -> None:
        assert parse_rate(rate) == (text, interval_us)
        assert RateLimit("k", rate).rate == text

    @pytest.mark.parametrize(
        "rate",
        [
            *("", "/m", "m", "10/", "10/y", "10/M", "10 /m", " 10/m", "10/m\n", "10/m/m", "1e3/s", "1_0/s"),
            *("nan/s", "inf", "0x10", "+1/s", "1./s", "\u0661\u0660/s", "9" * 99),
            *(math.nan, True, None, b"1/s", [1], 1j),
        ],
        ids=shorten,
    )
    def test_that_can_not_be_read_are_refused_with_examples(self, rate: Any) -> None:
        with pytest.raises(DeclarationError, match=r"can't be read: write '10/s'"):
            RateLimit("k", rate)

    @pytest.mark.parametrize(
        "rate", ["-1/s", -1, -0.5, "100001/s", 10**6, 10**400, math.inf, "360000001/h"], ids=shorten
    )
    def test_out_of_range_are_refused(self, rate: Any) -> None:
        with pytest.raises(DeclarationError, match="is out of range: from 0 "):
            RateLimit("k", rate)

    def test_slower_than_one_in_a_century_is_refused(self) -> None:
        with pytest.raises(DeclarationError, match="century"):
            RateLimit("k", 1e-10)

    @given(st.text() | st.floats() | st.integers())
    def test_reading_one_never_fails_in_another_way_and_is_stable(self, rate: object) -> None:
        try:
            text, interval = parse_rate(rate)
        except Refused:
            return
        assert parse_rate(text) == (text, interval)
        assert interval is None or 10 <= interval < math.inf


@given(st.one_of(st.integers(), st.text(), st.binary(), st.lists(st.integers()), st.dictionaries(st.text(), st.text())))
def test_what_is_quoted_is_short_and_quoting_never_fails(value: object) -> None:
    assert len(shorten(value)) <= 80


def test_quoting_survives_a_broken_repr() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    assert "Broken" in shorten(Broken())
    assert shorten(10**5000)
