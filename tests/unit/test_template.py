"""Key templates: what they reach, what they refuse, what they yield."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_limits.declare.template import MAX_KEY_BYTES, Template, check_key, text_of
from celery_limits.errors import Refused, shorten


class Colour(Enum):
    RED = "red"
    NOTHING = None


class Tier(IntEnum):
    GOLD = 3


class Name(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not what is in it"


def resolve(template: str, function: Callable[..., object], *args: Any, **kwargs: Any) -> str:
    return Template.parse(template).bind(inspect.signature(function))(args, kwargs)


def ship(tenant_id: Any, order_id: Any = 7, *, region: Any = "eu") -> None: ...


class TestParsing:
    @pytest.mark.parametrize(
        ("template", "says"),
        [
            ("{x.__class__}", "reaches into a value"),
            ("{x.y.z}", "reaches into a value"),
            ("{x[0]}", "reaches into a value"),
            ("{x[__class__]}", "reaches into a value"),
            ("a:{}", "is positional; name the argument"),
            ("a:{0}", "is positional; name the argument"),
            ("{x!r}", "conversion or format spec"),
            ("{x:>10}", "conversion or format spec"),
            ("{x:{y}}", "conversion or format spec"),
            ("{ x }", "not the name of an argument"),
            ("{x y}", "not the name of an argument"),
            ("{x-y}", "not the name of an argument"),
            ("{x", "expected '}' before end of string"),
            ("x}", "Single '}' encountered"),
            ("{", "Single '{' encountered"),
            ("{x!}", "{{ and }} for braces"),
            ("a:{x}{y}", "side by side"),
            ("", "the key is empty"),
            ("a\tb", "control character"),
            ("a\u2028{x}", "control character"),
            ("a\ud800", "surrogate"),
            ("{x}\x7f", "control character"),
        ],
    )
    def test_refuses_all_but_plain_names(self, template: str, says: str) -> None:
        with pytest.raises(Refused) as caught:
            Template.parse(template)
        assert says in str(caught.value)

    @pytest.mark.parametrize(
        ("template", "shape"),
        [
            ("api", "api"),
            ("account:{src}", "account:{}"),
            ("account:{dst}", "account:{}"),
            ("{a}:{b}", "{}:{}"),
            ("{{a}}", "{{a}}"),
            ("{{{a}}}", "{{{}}}"),
        ],
    )
    def test_the_shape_forgets_names_and_nothing_else(self, template: str, shape: str) -> None:
        assert Template.parse(template).shape == shape

    @given(st.text(max_size=40) | st.text(alphabet="ab{}:.[]!0 ", max_size=12))
    def test_any_text_is_a_template_or_refused(self, text: str) -> None:
        try:
            template = Template.parse(text)
        except Refused:
            return
        assert all(name.isidentifier() for name in template.names)
        assert len(template.literals) == len(template.names) + 1

    @given(
        st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers()),
        st.text(alphabet="ab{}: ", max_size=12),
    )
    def test_what_it_yields_is_what_str_format_would(self, values: dict[str, int], text: str) -> None:
        def task(**kwargs: int) -> None: ...

        try:
            key = resolve(text, task, **values)
        except Refused:
            return
        assert key == text.format(**values)


class TestBinding:
    @pytest.mark.parametrize(
        ("args", "kwargs", "key"),
        [
            ((42,), {}, "42:7:eu"),
            ((42, 8), {}, "42:8:eu"),
            ((), {"tenant_id": 42}, "42:7:eu"),
            ((42,), {"order_id": 9, "region": "us"}, "42:9:us"),
        ],
    )
    def test_arguments_count_however_they_are_passed_and_defaults_apply(self, args: Any, kwargs: Any, key: str) -> None:
        assert resolve("{tenant_id}:{order_id}:{region}", ship, *args, **kwargs) == key

    def test_a_constant_needs_no_argument(self) -> None:
        assert resolve("carrier-api", lambda: None) == "carrier-api"
        assert resolve("a{{b}}", lambda: None) == "a{b}"

    def test_an_unknown_name_is_refused_with_the_names_there_are(self) -> None:
        with pytest.raises(Refused) as caught:
            Template.parse("tenant:{tennant}").bind(inspect.signature(ship))
        assert "{tennant}" in str(caught.value)
        assert "tenant_id, order_id, region" in str(caught.value)

    def test_a_task_without_arguments_says_so(self) -> None:
        with pytest.raises(Refused, match="its arguments: none"):
            Template.parse("{x}").bind(inspect.signature(lambda: None))

    def test_a_name_that_kwargs_may_supply_is_accepted_and_asked_for_at_the_call(self) -> None:
        def task(first: Any, **options: Any) -> None: ...

        assert resolve("{first}:{shop}", task, 1, shop="x") == "1:x"
        with pytest.raises(Refused, match="argument 'shop' is missing"):
            resolve("{first}:{shop}", task, 1)

    @pytest.mark.parametrize("name", ["rest", "options"])
    def test_all_the_other_arguments_are_no_name(self, name: str) -> None:
        def task(*rest: Any, **options: Any) -> None: ...

        with pytest.raises(Refused, match="not one argument but all the others"):
            Template.parse(f"{{{name}}}").bind(inspect.signature(task))

    def test_keyword_only_behind_star_args_is_not_taken_from_a_position(self) -> None:
        def task(a: Any, *rest: Any, b: Any = "default") -> None: ...

        assert resolve("{b}", task, 1, 2, 3) == "default"
        assert resolve("{b}", task, 1, 2, b=9) == "9"

    def test_positional_only_is_not_taken_from_a_keyword(self) -> None:
        def task(a: Any = "default", /, **options: Any) -> None: ...

        assert resolve("{a}", task, a="of the options") == "default"
        assert resolve("{a}", task, 1, a="of the options") == "1"

    def test_a_missing_argument_is_refused(self) -> None:
        with pytest.raises(Refused, match="argument 'tenant_id' is missing"):
            resolve("{tenant_id}", ship)

    def test_an_argument_given_twice_is_refused(self) -> None:
        with pytest.raises(Refused, match="argument 'tenant_id' is given twice"):
            resolve("{tenant_id}", ship, 1, tenant_id=2)

    @given(st.lists(st.integers(), max_size=5), st.dictionaries(st.sampled_from("abcdef"), st.integers(), max_size=4))
    def test_it_finds_what_the_body_would_see(self, args: list[int], kwargs: dict[str, int]) -> None:
        def task(a: Any, b: Any = "B", /, c: Any = "C", *rest: Any, d: Any = "D", **options: Any) -> dict[str, Any]:
            return {**options, "a": a, "b": b, "c": c, "d": d}

        try:
            seen = task(*args, **kwargs)
        except TypeError:
            return
        for name, value in seen.items():
            assert resolve(f"{{{name}}}", task, *args, **kwargs) == str(value)


class TestValues:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("acme", "acme"),
            ("Łódź 🚚", "Łódź 🚚"),
            (Name("acme"), "acme"),
            (42, "42"),
            (-1, "-1"),
            (True, "True"),
            (False, "False"),
            (Tier.GOLD, "3"),
            (Colour.RED, "red"),
            (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
            (date(2024, 2, 29), "2024-02-29"),
            (datetime(2024, 2, 29, 12, tzinfo=timezone.utc), "2024-02-29T12:00:00+00:00"),
            (Decimal("1.00"), "1"),
            (Decimal("-0"), "0"),
            (Decimal("1e3"), "1000"),
            (Decimal("0.10"), "0.1"),
            (1.0, "1"),
            (0.1, "0.1"),
            (1e22, "10000000000000000000000"),
        ],
    )
    def test_that_name_things_are_written_plainly(self, value: object, text: str) -> None:
        assert text_of(value, "it") == text

    @pytest.mark.parametrize(
        "value",
        [
            *(
                None,
                "",
                Name(""),
                b"x",
                {},
                {"a": 1},
                [],
                [1],
                (1,),
                {1},
                pytest.param(object(), id="an object"),
                Colour.NOTHING,
                Colour,
                len,
            ),
            *(float("nan"), float("inf"), Decimal("nan"), Decimal("sNaN"), Decimal("-inf")),
            *(10**200, -(10**5000), Decimal("1e999999"), Decimal("1e-999999"), Decimal("1" * 201)),
        ],
        ids=shorten,
    )
    def test_that_name_nothing_are_refused_with_the_argument(self, value: object) -> None:
        with pytest.raises(Refused) as caught:
            resolve("tenant:{tenant_id}", ship, value)
        assert "argument 'tenant_id' is " in str(caught.value)
        assert len(str(caught.value)) < 300

    def test_a_refused_value_is_quoted_with_its_type_and_what_to_use(self) -> None:
        with pytest.raises(Refused, match=r"argument 'tenant_id' is \{'id': 3\} \(dict\).*use a str, int, UUID"):
            resolve("tenant:{tenant_id}", ship, {"id": 3})

    @given(st.one_of(st.text(), st.integers(), st.floats(), st.decimals(), st.uuids(), st.dates(), st.booleans()))
    def test_any_scalar_gives_a_text_or_is_refused(self, value: object) -> None:
        try:
            text = text_of(value, "it")
        except Refused:
            return
        assert text
        assert type(text) is str

    @given(st.integers(-(10**30), 10**30))
    def test_equal_numbers_are_one_key(self, number: int) -> None:
        assert text_of(Decimal(number), "it") == text_of(Decimal(f"{number}.000"), "it") == str(number)


class TestKeys:
    @given(st.text(alphabet=string.printable + "éł🚚\x80\u2029\ud800", max_size=220))
    def test_a_key_is_short_and_has_no_control_characters(self, key: str) -> None:
        try:
            check_key(key)
        except Refused:
            return
        assert 0 < len(key.encode()) <= MAX_KEY_BYTES
        assert not set(key) & {chr(n) for n in (*range(32), *range(127, 160), 0x2028, 0x2029)}

    @pytest.mark.parametrize("key", ["k" * 200, "é" * 100, "a b", "{x}", "a:b/c#d", "\u00a0"])
    def test_odd_but_harmless_keys_are_fine(self, key: str) -> None:
        assert check_key(key) == key

    @pytest.mark.parametrize("key", ["", "k" * 201, "é" * 101, "a\nb", "a\x00", "\x85", "\u2028", "\udfff"])
    def test_others_are_refused(self, key: str) -> None:
        with pytest.raises(Refused, match="the key"):
            check_key(key)
