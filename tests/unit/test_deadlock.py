"""Guarantee 12: deadlock is refused, not suffered."""

from __future__ import annotations

import inspect
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_limits import Concurrency, DeadlockError, DeclarationError, FloatingConcurrency, RateLimit
from celery_limits.declare.chain import Declared, declare
from celery_limits.declare.deadlock import check_chains
from celery_limits.declare.limits import Limit


def anything(**arguments: object) -> None: ...


def by_shop(**arguments: object) -> str:
    return "shop"


def by_town(**arguments: object) -> str:
    return "town"


def task(name: str, *limits: Limit | str) -> Declared:
    """A bare string is a concurrency limit of 1 at that key."""
    chain = [Concurrency(limit, 1) if isinstance(limit, str) else limit for limit in limits]
    return declare(name, chain, inspect.signature(anything))


def floating(key: str, refresh: str = "m:f") -> FloatingConcurrency:
    return FloatingConcurrency(key, default=1, refresh=refresh, every=30)


def message(*declared: Declared) -> str:
    with pytest.raises(DeadlockError) as caught:
        check_chains(declared)
    return str(caught.value)


class TestNoCycle:
    @pytest.mark.parametrize(
        "declared",
        [
            [],
            [task("a", "x")],
            [task("a", "x", "y"), task("b", "x", "y")],
            [task("a", "x", "y"), task("b", "y", "z"), task("c", "x", "z")],
            [task("a", "tenant:{t}", "api"), task("b", "tenant:{tenant_id}", "api")],
            [task("a", "account:{src}", "account:{dst}")],
            [task("a", "account:{src}", "account:{dst}"), task("b", "account:{dst}", "account:{src}")],
            [task("a", "account:{src}", RateLimit("api", 1), "account:{dst}")],
            [task("a", "x", RateLimit("api", 1)), task("b", RateLimit("api", 1), "x")],
            [
                task("a", "x", RateLimit("r", 1), RateLimit("s", 1)),
                task("b", RateLimit("s", 1), RateLimit("r", 1)),
            ],
            [task("a", "{x}"), task("b", "{{x}}", "{x}")],
            [task("a", Concurrency(by_shop, 1), Concurrency(by_town, 1)), task("b", Concurrency(by_town, 1))],
            [task("a", "x", floating("y")), task("b", "x", "y")],
        ],
    )
    def test_chains_in_one_order_pass(self, declared: list[Declared]) -> None:
        check_chains(declared)

    def test_a_generator_is_fine(self) -> None:
        check_chains(task(name, "x", "y") for name in "ab")

    def test_three_thousand_tasks_pass_quickly_enough_for_every_start(self) -> None:
        keys = [f"k{n:05}" for n in range(3000)]
        check_chains(task(f"t{n}", *keys[n : n + 6]) for n in range(3000))


class TestCycle:
    def test_two_tasks_in_opposite_orders_read_as_a_person_would_say_it(self) -> None:
        found = message(
            task("shop.ship", "tenant:{tenant_id}", floating("warehouse"), RateLimit("api", "1/s")),
            task("shop.count", "warehouse"),
            task("shop.refund", "warehouse", "tenant:{tid}"),
        )
        assert found == (
            "these limits can deadlock, each task holding what the next one waits for:\n"
            "  'shop.ship' takes 'tenant:{tenant_id}' before 'warehouse'\n"
            "  'shop.refund' takes 'warehouse' before 'tenant:{tid}'\n"
            "Take them in one order in all tasks: 'tenant:{tenant_id}', then 'warehouse'.\n"
            "To get there, change 'shop.refund'."
        )

    def test_across_three_tasks_where_no_two_disagree(self) -> None:
        found = message(task("a", "x", "y"), task("b", "y", "z"), task("c", "z", "x"))
        assert found.splitlines()[1:] == [
            "  'a' takes 'x' before 'y'",
            "  'b' takes 'y' before 'z'",
            "  'c' takes 'z' before 'x'",
            "Take them in one order in all tasks: 'x', then 'y', then 'z'.",
            "To get there, change 'c'.",
        ]

    def test_the_order_to_use_is_the_one_that_changes_the_fewest_tasks(self) -> None:
        found = message(task("odd", "x", "y"), *[task(f"t{n}", "y", "x") for n in range(8)])
        assert "'t0', 't1', 't2', 't3', 't4' and 3 more take 'y' before 'x'" in found
        assert "in all tasks: 'y', then 'x'." in found
        assert "change 'odd'." in found

    def test_keys_between_are_left_out_of_the_story(self) -> None:
        found = message(task("a", "x", "m", "n", "y"), task("b", "y", "o", "x"))
        assert "'a' takes 'x' before 'y'" in found
        assert "'m'" not in found
        assert "'o'" not in found

    def test_rates_between_do_not_hide_it(self) -> None:
        assert "'a' takes 'x' before 'y'" in message(
            task("a", "x", RateLimit("r", 1), "y"), task("b", "y", RateLimit("r", 1), "x")
        )

    def test_one_task_with_another_key_between_two_of_one_shape(self) -> None:
        found = message(task("transfer", "account:{src}", "vault", "account:{dst}"))
        assert "'transfer' takes 'account:{src}' before 'vault'" in found
        assert "'transfer' takes 'vault' before 'account:{dst}'" in found
        assert "in all tasks: 'account:{src}', then 'vault'." in found

    def test_field_names_make_no_difference(self) -> None:
        assert "'a:{one}'" in message(task("a", "a:{one}", "b"), task("b", "b", "a:{two}"))

    def test_floating_limits_hold_too(self) -> None:
        message(task("a", floating("x"), "y"), task("b", "y", floating("x")))

    def test_a_callable_is_the_same_key_wherever_it_is_used(self) -> None:
        one, other = Concurrency(by_shop, 1), Concurrency(by_town, 1)
        found = message(task("a", one, other), task("b", other, one))
        assert f"'a' takes <{__name__}:by_shop> before <{__name__}:by_town>" in found

    def test_callables_of_one_name_are_told_apart(self) -> None:
        one, other, third = (Concurrency(lambda **_: "k", 1) for _ in range(3))
        check_chains([task("a", one, other), task("b", other, third)])
        message(task("a", one, other), task("b", other, third), task("c", third, one))

    def test_the_message_does_not_depend_on_the_order_of_tasks(self) -> None:
        tasks = [
            task("a", "x", "y"),
            task("b", "y", "z"),
            task("c", "z", "x"),
            task("d", "z", "w"),
            task("e", "w", "z"),
        ]
        assert len({message(*some) for some in permutations(tasks)}) == 1

    @given(st.lists(st.permutations("vwxyz").map(lambda keys: keys[:3]), min_size=1, max_size=6))
    def test_it_is_found_exactly_when_there_is_no_common_order(self, chains: list[list[str]]) -> None:
        tasks = [task(f"t{n}", *chain) for n, chain in enumerate(chains)]
        common_order = any(
            all(sorted(chain, key=order.index) == chain for chain in chains) for order in permutations("vwxyz")
        )
        if common_order:
            check_chains(tasks)
        else:
            message(*tasks)

    @given(st.lists(st.permutations("vwxyz").map(lambda keys: keys[:3]), min_size=2, max_size=5))
    def test_the_order_it_proposes_suits_all_tasks_but_those_it_says_to_change(self, chains: list[list[str]]) -> None:
        tasks = {f"t{n}": chain for n, chain in enumerate(chains)}
        try:
            check_chains([task(name, *chain) for name, chain in tasks.items()])
        except DeadlockError as error:
            *_, order_line, change_line = str(error).splitlines()
            order, to_change = order_line.split("'")[1::2], change_line.split("'")[1::2]
            unsuited = {
                name
                for name, chain in tasks.items()
                if (used := [key for key in chain if key in order]) != sorted(used, key=order.index)
            }
            assert unsuited == set(to_change)


class TestOneKeyOneCounter:
    @pytest.mark.parametrize("slots", [Concurrency("api", 3), floating("api")])
    def test_concurrency_and_rate_on_one_key_is_refused_with_another_name(self, slots: Limit) -> None:
        tasks = [task("a", slots), task("b", RateLimit("api", "1/s"))]
        for some in (tasks, tasks[::-1]):
            with pytest.raises(DeclarationError) as caught:
                check_chains(some)
            assert not isinstance(caught.value, DeadlockError)
            assert f"task 'a' has {slots!r}, task 'b' has RateLimit('api', '1/s')" in str(caught.value)
            assert "call the rate's key 'rate:api', say" in str(caught.value)

    def test_templates_of_one_shape_are_one_key_here_too(self) -> None:
        with pytest.raises(DeclarationError, match="one key for a rate and for concurrency"):
            check_chains([task("a", "t:{x}"), task("b", RateLimit("t:{y}", 1))])

    def test_a_callable_too(self) -> None:
        with pytest.raises(DeclarationError, match="use another function for the rate's key"):
            check_chains([task("a", Concurrency(by_shop, 1)), task("b", RateLimit(by_shop, 1))])

    def test_one_key_has_one_refresh_function(self) -> None:
        with pytest.raises(DeclarationError, match="one key with two refresh functions: task 'a' has"):
            check_chains([task("a", floating("w", "m:f")), task("z", "w"), task("b", floating("w", "m:g"))])

    def test_different_limits_on_one_key_are_fine(self) -> None:
        check_chains([task("plain", Concurrency("k", 1)), task("gold", Concurrency("k", 3))])
