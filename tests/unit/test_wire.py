"""The `limits` header: sound or `CorruptChain`, small, the same on both ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from celery_limits import CorruptChain, ResolutionError
from celery_limits.declare.chain import ConcurrencyLink, FloatingLink, Link, RateLink
from celery_limits.errors import shorten
from celery_limits.message.header import HEADER, Header, derived_ticket, new_ticket, read_header, task_id_of, ticket_in

TASK_ID = "3f0e1d0e-6d3c-4e1f-9d5c-1a2b3c4d5e6f"
LINKS: tuple[Link, ...] = (
    ConcurrencyLink(key="tenant:8f14e45f", limit=3),
    FloatingLink(key="warehouse:berlin", default=10, every=30.0, refresh="shop.capacity:warehouse_slots"),
    RateLink(key="carrier-api", rate="100/m", burst=20),
)
DONE = Header(
    ticket=new_ticket(TASK_ID),
    links=LINKS,
    at=3,
    held=("tenant:8f14e45f", "warehouse:berlin"),
    fence=9_876_543_210,
)


def on_the_wire(**changes: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(DONE.dump())), **changes}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in on_the_wire().items() if key != name}


def with_link(*drop: str, at: int = 0, **changes: Any) -> dict[str, Any]:
    link = {"kind": "concurrency", "key": "k", "limit": 1, **changes}
    return on_the_wire(links=[{k: v for k, v in link.items() if k not in drop}], at=at, held=[])


class TestRoundTrip:
    def test_the_name_of_the_header(self) -> None:
        assert HEADER == "limits"

    def test_what_is_dumped_is_read_back_through_json(self) -> None:
        assert read_header(json.loads(json.dumps(DONE.dump()))) == DONE
        assert read_header(DONE.dump()) == DONE

    def test_a_header_of_three_links_all_held_is_under_400_bytes(self) -> None:
        assert len(json.dumps(DONE.dump(), separators=(",", ":"))) < 400

    def test_one_of_version_1_is_read(self) -> None:
        old = {**without("arrival"), "v": 1}
        for _ in range(2):  # the second time its chain is known
            assert read_header(old) == DONE.model_copy(update={"v": 1})
        assert list(read_header(old).dump()) == list(DONE.dump())

    def test_position_held_and_fence_are_always_there_and_last(self) -> None:
        fresh = Header(ticket="id.nonce", links=LINKS).dump()
        assert list(fresh) == ["v", "ticket", "links", "arrival", "at", "held", "fence"]
        assert json.dumps(fresh, separators=(",", ":")).endswith('],"arrival":"","at":0,"held":[],"fence":0}')

    def test_defaults_are_left_out_of_links(self) -> None:
        assert DONE.dump()["links"] == [
            {"kind": "concurrency", "key": "tenant:8f14e45f", "limit": 3},
            {
                "kind": "floating",
                "key": "warehouse:berlin",
                "default": 10,
                "every": 30.0,
                "refresh": "shop.capacity:warehouse_slots",
            },
            {"kind": "rate", "key": "carrier-api", "rate": "100/m", "burst": 20},
        ]

    def test_changing_a_dump_changes_no_other(self) -> None:
        DONE.dump()["links"][0]["limit"] = 99
        assert DONE.dump()["links"][0]["limit"] == 3

    def test_is_immutable(self) -> None:
        with pytest.raises(ValidationError):
            DONE.at = 0  # type: ignore[misc]

    def test_whole_seconds_may_come_back_as_an_int(self) -> None:
        """Lua's JSON writes 30.0 as 30."""
        header = on_the_wire()
        header["links"][1]["every"] = 30
        assert read_header(header) == DONE

    @pytest.mark.parametrize(
        ("at", "held"),
        [
            (0, []),
            (1, ["tenant:8f14e45f"]),
            (2, ["tenant:8f14e45f", "warehouse:berlin"]),
            (3, ["tenant:8f14e45f", "warehouse:berlin"]),
        ],
    )
    def test_every_position_has_its_held_keys(self, at: int, held: list[str]) -> None:
        assert read_header(on_the_wire(at=at, held=held)).at == at


class TestCorrupt:
    @pytest.mark.parametrize(
        ("header", "says"),
        [
            (None, "not a mapping but None"),
            ("{}", "not a mapping"),
            ([], "not a mapping"),
            (True, "not a mapping"),
            ({}, "version None is not one of those understood here, 1 and 2"),
            (on_the_wire(v=3), "version 3 is not one of"),
            (on_the_wire(v="2"), "version '2' is not one of"),
            (on_the_wire(v=True), "version True is not one of"),
            (on_the_wire(v=2.0), "version 2.0 is not one of"),
            (on_the_wire(v=[2]), "version [2] is not one of"),
            (on_the_wire(v=1), "unknown field 'arrival'"),
            *[
                (without(name), f"'{name}' is missing")
                for name in ("ticket", "links", "arrival", "at", "held", "fence")
            ],
            (on_the_wire(arrival=0), "arrival: Input should be a valid string, not 0"),
            (on_the_wire(arrival="7"), "arrival: the arrival '7' is not '<number>-<seal>'"),
            (on_the_wire(arrival="0-" + "a" * 20), "is not '<number>-<seal>'"),
            (on_the_wire(arrival="7-" + "A" * 20), "is not '<number>-<seal>'"),
            (on_the_wire(extra=1), "unknown field 'extra'"),
            (on_the_wire(**{"x" * 10_000: 1}), "unknown field 'xxx"),
            # ticket
            (on_the_wire(ticket=None), "ticket: Input should be a valid string, not None"),
            (on_the_wire(ticket=""), "ticket: the ticket is empty"),
            (on_the_wire(ticket="no-nonce"), "ticket: the ticket 'no-nonce' is not '<task id>.<nonce>'"),
            (on_the_wire(ticket=".nonce"), "is not '<task id>.<nonce>'"),
            (on_the_wire(ticket="id."), "is not '<task id>.<nonce>'"),
            (on_the_wire(ticket="id.a#2"), "is not '<task id>.<nonce>'"),
            (on_the_wire(ticket="id.a:m"), "is not '<task id>.<nonce>'"),
            (on_the_wire(ticket="id.nonce\n"), "control character"),
            (on_the_wire(ticket="a\tb.nonce"), "control character"),
            (on_the_wire(ticket="i" * 250 + ".nonce"), "256 bytes long, at most 255"),
            (on_the_wire(ticket="\ud800.n"), "surrogate"),
            # links
            (on_the_wire(links=[]), "links: the list of links is empty, and that never means no limits"),
            (on_the_wire(links=None), "links: Input should be a valid tuple, not None"),
            (on_the_wire(links={}), "links: "),
            (on_the_wire(links="abc"), "links: "),
            (on_the_wire(links=[None]), "links.0: "),
            (on_the_wire(links=[[]]), "links.0: "),
            (on_the_wire(links=[{}]), "links.0: "),
            (on_the_wire(links=[{"kind": "concurrency", "key": "k", "limit": 1}] * 17), "17 entries; at most 16"),
            (on_the_wire(links=[None] * 10**6), "1000000 entries; at most 16"),
            (with_link(kind="mutex"), "links.0: unknown kind 'mutex'"),
            (with_link(kind="m" * 10_000), "links.0: unknown kind 'mmm"),
            (with_link(kind=["concurrency"]), "links.0: "),
            (with_link(kind=None), "links.0: "),
            (with_link("kind"), "links.0: "),
            (with_link("limit"), "links.0.concurrency.limit: Field required"),
            (with_link(limit=True), "links.0.concurrency.limit: Input should be a valid integer, not True"),
            (with_link(limit="3"), "not '3'"),
            (with_link(limit=3.0), "not 3.0"),
            (with_link(limit=-1), "not -1"),
            (with_link(limit=10**5000), "links.0.concurrency.limit: "),
            (with_link(key=""), "the key is empty"),
            (with_link(key="k" * 10**6), "the key is 1000000 bytes long"),
            (with_link(key="a\x00b"), "control character"),
            (with_link(weight=2), "weight 2 is more than limit 1"),
            (with_link(surprise=1), "links.0.concurrency.surprise: "),
            (with_link(**{f"f{n}": n for n in range(100)}), "a link with 103 fields"),
            (on_the_wire(links=on_the_wire()["links"][:1] * 2, at=0, held=[]), "one key twice"),
            # position, held, fence
            (on_the_wire(at=4), "position 4 is beyond the end of a chain of 3"),
            (on_the_wire(at=17), "at: "),
            (on_the_wire(at=-1), "at: "),
            (on_the_wire(at=True), "at: Input should be a valid integer, not True"),
            (on_the_wire(at=1.0), "at: "),
            (on_the_wire(at=None), "at: "),
            (on_the_wire(held=None), "held: "),
            (on_the_wire(held=[]), "held keys ()"),
            (on_the_wire(held=["tenant:8f14e45f"]), "held keys ('tenant:8f14e45f',)"),
            (on_the_wire(held=["warehouse:berlin", "tenant:8f14e45f"]), "held keys"),
            (on_the_wire(held=["tenant:8f14e45f", "elsewhere"]), "held keys"),
            (on_the_wire(held=["tenant:8f14e45f", "warehouse:berlin", "carrier-api"]), "held keys"),
            (on_the_wire(held=["tenant:8f14e45f", "tenant:8f14e45f", "warehouse:berlin"]), "held keys"),
            (on_the_wire(held=["tenant:8f14e45f", 3]), "held.1: "),
            (on_the_wire(held="tenant:8f14e45f"), "held: "),
            (on_the_wire(held=["x"] * 1000), "1000 entries"),
            (on_the_wire(at=1), "held keys"),
            (on_the_wire(fence=-1), "fence: "),
            (on_the_wire(fence=True), "fence: "),
            (on_the_wire(fence="1"), "fence: "),
            (on_the_wire(fence=2**53 + 1), "fence: "),
        ],
        ids=shorten,
    )
    def test_guarantee_10_what_can_not_be_understood_is_an_error_that_says_what(
        self, header: object, says: str
    ) -> None:
        with pytest.raises(CorruptChain) as caught:
            read_header(header)
        assert str(caught.value).startswith("corrupt limits header: ")
        assert says in str(caught.value)
        assert len(str(caught.value)) < 400

    def test_nesting_without_end_is_just_corrupt(self) -> None:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        for header in (deep, on_the_wire(links=deep), on_the_wire(held=deep), on_the_wire(v=deep)):
            with pytest.raises(CorruptChain):
                read_header(header)


def read_or_none(header: object) -> Header | None:
    """None if it is corrupt; any other error is the test's."""
    try:
        return read_header(header)
    except CorruptChain:
        return None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
keys = st.text(min_size=1, max_size=20, alphabet=st.characters(exclude_categories=["C", "Zl", "Zp"]))
lines: dict[str, st.SearchStrategy[Any]] = {
    "on_full": st.sampled_from(["wait", "discard"]),
    "max_waiting": st.none() | st.integers(0, 10**9),
}
links = st.one_of(
    st.builds(ConcurrencyLink, key=keys, limit=st.integers(50, 10**9) | st.just(0), weight=st.integers(1, 50), **lines),
    st.builds(
        FloatingLink,
        key=keys,
        default=st.integers(0, 10**9),
        every=st.floats(0.001, 10**6),
        refresh=st.just("shop.capacity:slots"),
        weight=st.integers(1, 10_000),
        **lines,
    ),
    st.builds(
        RateLink,
        key=keys,
        rate=st.sampled_from(["0/s", "0.5/s", "100/m", "7/h"]),
        burst=st.integers(50, 10_000),
        cost=st.integers(1, 50),
    ),
)
chains = st.lists(links, min_size=1, max_size=16, unique_by=lambda link: link.key).map(tuple)


@st.composite
def headers(draw: st.DrawFn) -> Header:
    chain = draw(chains)
    at = draw(st.integers(0, len(chain)))
    held = tuple(link.key for link in chain[:at] if link.kind != "rate")
    return Header(ticket=new_ticket(draw(keys)), links=chain, at=at, held=held, fence=draw(st.integers(0, 2**53)))


class TestAnyInput:
    @given(json_values)
    def test_any_json_is_a_header_or_corrupt(self, value: object) -> None:
        with pytest.raises(CorruptChain):
            read_header(value)

    @given(st.sampled_from(["v", "ticket", "links", "arrival", "at", "held", "fence"]), json_values)
    def test_a_good_header_with_any_field_replaced_is_a_header_or_corrupt(self, name: str, value: object) -> None:
        header = on_the_wire(**{name: value})
        read = read_or_none(header)
        assert read is None or read.dump() == header

    @given(
        st.integers(0, 2),
        st.sampled_from(["kind", "key", "limit", "weight", "rate", "burst", "every", "refresh", "on_full"]),
        json_values,
    )
    def test_a_good_link_with_any_field_replaced_is_a_link_or_corrupt(
        self, link: int, name: str, value: object
    ) -> None:
        header = on_the_wire()
        header["links"][link][name] = value
        read = read_or_none(header)
        assert read is None or len(read.links) == 3

    @given(headers())
    def test_every_header_is_read_back_as_it_was(self, header: Header) -> None:
        text = json.dumps(header.dump())
        again = read_header(json.loads(text))
        assert again == header
        assert json.dumps(again.dump()) == text


class TestTickets:
    def test_every_publish_has_its_own(self) -> None:
        tickets = {new_ticket(TASK_ID) for _ in range(1000)}
        assert len(tickets) == 1000
        assert {task_id_of(ticket) for ticket in tickets} == {TASK_ID}

    @pytest.mark.parametrize("task_id", ["a", "shop.ship.42", "..", "a b", "Łódź", "x" * 242])
    def test_the_task_id_is_found_in_it(self, task_id: str) -> None:
        for ticket in (new_ticket(task_id), derived_ticket(task_id[:200], b"")):
            assert read_header(on_the_wire(ticket=ticket)).ticket == ticket
        assert task_id_of(new_ticket(task_id)) == task_id

    @pytest.mark.parametrize("task_id", ["", "a\nb", "x" * 243, "\ud800", None, 7, b"x"], ids=shorten)
    def test_a_task_id_that_can_not_be_a_name_is_an_error(self, task_id: Any) -> None:
        with pytest.raises(ResolutionError, match="task id"):
            new_ticket(task_id)
        with pytest.raises(ResolutionError, match="task id"):
            derived_ticket(task_id if len(str(task_id)) < 200 else task_id * 2, b"body")

    @pytest.mark.parametrize("body", ["[é]", "[é]".encode(), memoryview("[é]".encode())])
    def test_a_derived_one_is_the_same_whatever_type_the_transport_has_for_a_body(self, body: Any) -> None:
        assert derived_ticket("id", body) == derived_ticket("id", "[é]")

    def test_a_derived_one_is_the_same_for_the_same_message_in_any_process(self) -> None:
        assert derived_ticket("id", b"[[1], {}, {}]", 0, None) == "id.b831ab2ec1cfe8a5"

    @pytest.mark.parametrize(
        "message",
        [
            ("id", b"[[1], {}, {}]", 1, None),
            ("id", b"[[1], {}, {}]", 0, "2024-02-29T00:00:00"),
            ("id", b"[[1], {}, {}]", 0),
            ("id", b"[[1], {}, {}]", "0", None),
            ("id", b"[[2], {}, {}]", 0, None),
            ("other", b"[[1], {}, {}]", 0, None),
        ],
    )
    def test_a_derived_one_differs_for_another_message(self, message: Any) -> None:
        assert derived_ticket(*message) != derived_ticket("id", b"[[1], {}, {}]", 0, None)


def test_copies_in_two_queues_are_two_tickets_and_each_keeps_its_own() -> None:
    ticket = new_ticket("some.task")
    here, there = ticket_in(ticket, "here"), ticket_in(ticket, "there")
    assert len({ticket, here, there}) == 3
    assert ticket_in(here, "here") == here
    assert task_id_of(here) == "some.task"
    assert read_header({**Header(ticket=here, links=LINKS).dump()}).ticket == here
