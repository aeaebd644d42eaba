"""The `limits` header of any message that anyone can publish: understood in every respect, or an error of its own task.

Through the gate's own eyes, with Celery's real requests.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from celery import Celery
from celery.worker.request import Request
from hypothesis import given
from hypothesis import strategies as st
from kombu.message import Message

from celery_limits import Concurrency, FloatingConcurrency, RateLimit
from celery_limits.app.stamp import links_of
from celery_limits.declare.chain import ConcurrencyLink, FloatingLink
from celery_limits.errors import CorruptChain, LimitError
from celery_limits.message.header import Header, read_header
from celery_limits.worker.plan import Plan, plan_of
from tests.fuzz.budget import budget

APP: Any = Celery("fuzz", set_as_current=False)


def body(tenant: int) -> int:
    return tenant


LIMITED = APP.task(
    name="fuzz.limited",
    shared=False,
    limits=[
        Concurrency("tenant:{tenant}", 5, weight=2, max_waiting=100),
        FloatingConcurrency("warehouse", default=10, refresh="shop:size", every=30),
        RateLimit("api", "100/m", burst=20),
    ],
)(body)
PLAIN = APP.task(name="fuzz.plain", shared=False)(body)
TASK_ID = "7f9c6d"

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.sampled_from(["", "rate"])
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=5)
)
keys = st.sampled_from(["tenant:1", "warehouse", "api", "victim", "tenant:2"]) | st.text(max_size=20)
links = st.fixed_dictionaries(
    {"kind": st.sampled_from(["concurrency", "floating", "rate", "other"]) | scalars, "key": keys | scalars},
    optional={
        "limit": st.integers(-1, 20) | scalars,
        "default": st.integers(-1, 20) | scalars,
        "every": st.floats(0, 100) | scalars,
        "refresh": st.sampled_from(["os:system", "shop:size", "x"]) | scalars,
        "rate": st.sampled_from(["1/h", "100/m", "100000/s", "0/s"]) | scalars,
        "burst": st.integers(0, 100) | scalars,
        "cost": st.integers(0, 5) | scalars,
        "weight": st.integers(0, 5) | scalars,
        "on_full": st.sampled_from(["wait", "discard", "run"]) | scalars,
        "max_waiting": st.integers(-1, 200) | scalars,
        "more": anything,
    },
)
nearly = st.fixed_dictionaries(
    {
        "v": st.just(1) | scalars,
        "ticket": st.sampled_from([f"{TASK_ID}.1", f"{TASK_ID}.abc-12345678", "other.1", ".", "a.b.c"]) | scalars,
        "links": st.lists(links, max_size=4) | anything,
        "at": st.just(0) | scalars,
        "held": st.just([]) | anything,
        "fence": st.just(0) | scalars,
    },
    optional={"more": anything},
)


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """A sound header in which one thing is not as it was."""
    made = draw(st.lists(links, min_size=1, max_size=3))
    header = {"v": 1, "ticket": f"{TASK_ID}.1", "links": made, "at": 0, "held": [], "fence": 0}
    place: Any = header
    for _ in range(draw(st.integers(0, 2))):
        inner = [
            value for value in (place.values() if isinstance(place, dict) else place) if isinstance(value, (dict, list))
        ]
        if inner:
            place = draw(st.sampled_from(inner))
    if isinstance(place, dict) and place:
        place[draw(st.sampled_from(sorted(place)))] = draw(anything)
    elif isinstance(place, list):
        place.append(draw(anything))
    return header


headers = anything | nearly | damaged()


def request_with(task: Any, header: Any) -> Any:
    made, properties, body, _ = APP.amqp.as_task_v2(TASK_ID, task.name, kwargs={"tenant": 1})
    message = Message(
        body=json.dumps(body),
        content_type="application/json",
        content_encoding="utf-8",
        headers={**made, "limits": header},
        properties={**properties, "delivery_tag": "1"},
        delivery_info={"exchange": "", "routing_key": "celery"},
    )
    return Request(message, app=APP, hostname="worker@host", task=task)


def planned(task: Any, header: Any, *, trust: bool) -> Plan | LimitError | None:
    try:
        return plan_of(request_with(task, header), trust=trust)
    except LimitError as error:
        return error


@budget(400)
@given(headers)
def test_a_header_is_understood_or_corrupt(header: Any) -> None:
    before = copy.deepcopy(header)
    try:
        read = read_header(header)
    except CorruptChain:
        return
    assert isinstance(read, Header)
    assert read.links
    assert repr(header) == repr(before)
    assert read_header(json.loads(json.dumps(read.dump()))) == read


@budget(300)
@given(headers)
def test_no_header_means_no_limit(header: Any) -> None:
    """At the gate: a chain with links, under a ticket of this very task, or an error."""
    plan = planned(PLAIN, header, trust=True)
    if header is None:  # as if there were none
        assert plan is None
    elif not isinstance(plan, LimitError):
        assert plan is not None
        assert plan.links
        assert plan.header.ticket.startswith(f"{TASK_ID}.")


@budget(300)
@given(headers)
def test_an_untrusted_header_only_lowers(header: Any) -> None:
    own = links_of(APP, LIMITED.name, (), {"tenant": 1})
    plan = planned(LIMITED, header, trust=False)
    assert own is not None
    if isinstance(plan, LimitError):
        return
    assert plan is not None
    assert [(link.kind, link.key) for link in plan.links] == [(link.kind, link.key) for link in own]
    for ours, theirs in zip(own, plan.links, strict=True):
        if isinstance(ours, ConcurrencyLink) and isinstance(theirs, ConcurrencyLink):
            assert isinstance(ours.limit, int)
            assert isinstance(theirs.limit, int)
            assert ours.weight == theirs.weight <= theirs.limit <= ours.limit
            assert theirs.max_waiting is not None
            assert theirs.max_waiting <= 100
        elif isinstance(ours, FloatingLink) and isinstance(theirs, FloatingLink):
            assert theirs.default <= ours.default
            assert (theirs.refresh, theirs.every, theirs.weight) == (ours.refresh, ours.every, ours.weight)
        else:
            assert theirs == ours


@budget(200)
@given(
    st.dictionaries(st.sampled_from(["task", "it", "more"]), anything | st.just({"task": "fuzz.limited"}), max_size=3)
)
def test_the_arguments_of_a_map_are_understood_or_an_error(kwargs: dict[str, Any]) -> None:
    """`celery.map` and its like carry calls of another task in their arguments."""
    try:
        found = links_of(APP, "celery.map", (), kwargs)
    except LimitError:
        return
    assert found is None or found


def test_a_map_over_nothing_needs_no_limits() -> None:
    assert links_of(APP, "celery.map", (), {"task": {"task": "fuzz.limited"}, "it": []}) is None
