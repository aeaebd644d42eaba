"""Every route by which a task message leaves carries its chain, stamped anew (P5, guarantee 10).

Messages are published to kombu's in-memory broker and read back from the queue as a worker would get them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, Task, chain, chord, group, shared_task
from celery._state import _task_stack
from celery.beat import ScheduleEntry, Scheduler
from celery.exceptions import Ignore, ImproperlyConfigured, Retry
from celery.schedules import schedule
from kombu.utils import json as kombu_json

from celery_limits import Concurrency, DeadlockError, DeclarationError, Limits, RateLimit, ResolutionError
from celery_limits.message.call_limits import CALL_HEADER
from celery_limits.message.header import read_header, task_id_of

OWN = Concurrency("tenant:{tenant}", 3)


@shared_task(name="shared", limits=[Concurrency("shared", 1)])
def shared() -> None: ...


def takes_tenant(tenant: int) -> None: ...


class Based(Task):
    """A base class of the user's own."""

    abstract = True
    limits = (Concurrency("based", 2),)


@pytest.fixture
def app() -> Iterator[Any]:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.task_annotations = {"annotated": {"limits": [Concurrency("from-configuration", 1)]}}

    @app.task(shared=False, name="send", limits=[OWN], bind=True, max_retries=3)
    def ship(self: Any, tenant: int, order: int = 0) -> None: ...

    @app.task(shared=False, name="bare")
    def plain(*args: Any) -> None: ...

    @app.task(shared=False, name="annotated")
    def annotated() -> None: ...

    @app.task(shared=False, name="based", base=Based)
    def based() -> None: ...

    app.finalize()
    with app.connection_for_write() as connection:
        app.amqp.queues["celery"](connection.default_channel).declare()
        connection.default_channel.queue_purge("celery")
    yield app
    app.close()


def sent(app: Any) -> list[Any]:
    """The messages in the queue, first first."""
    found = []
    with app.connection_for_read() as connection:
        queue = app.amqp.queues["celery"](connection.default_channel)
        while message := queue.get(no_ack=True):
            found.append(message)
    return found


def headers(app: Any) -> list[Any]:
    return [read_header(message.headers["limits"]) for message in sent(app)]


def keys(app: Any) -> list[list[str]]:
    return [[link.key for link in header.links] for header in headers(app)]


ROUTES = {
    "delay": lambda app, ship: ship.delay(7),
    "keyword": lambda app, ship: ship.apply_async(kwargs={"tenant": 7}),
    "send_task": lambda app, ship: app.send_task("send", (7,)),
    "signature": lambda app, ship: ship.s(7).clone().apply_async(),
    "group": lambda app, ship: group(ship.si(7)).apply_async(),
    "chain": lambda app, ship: chain(ship.si(7), app.tasks["bare"].si()).apply_async(),
    "countdown": lambda app, ship: ship.apply_async((7,), countdown=60),
    "link": lambda app, ship: ship.apply_async((7,), link=app.tasks["bare"].s()),
    "beat": lambda app, ship: Scheduler(app, lazy=True).apply_async(
        ScheduleEntry(name="send", task="send", args=(7,), schedule=schedule(1), app=app), advance=False
    ),
}


@pytest.mark.parametrize("route", ROUTES)
def test_p5_every_route_carries_the_limits(app: Any, route: str) -> None:
    ROUTES[route](app, app.tasks["send"])
    (header,) = headers(app)
    assert [link.key for link in header.links] == ["tenant:7"]
    assert (header.at, header.held, header.fence) == (0, (), 0)


def test_p5_a_chunk_holds_what_each_of_its_parts_would(app: Any) -> None:
    """`map`, `starmap` and `chunks` run several calls in one body, one after the other."""
    ship = app.tasks["send"]
    ship.chunks([(2,), (1,), (2,), (3,)], 3).group().apply_async()
    ship.starmap([(5, 1), (4, 2)]).apply_async()
    ship.map([6, 6]).apply_async()
    found = [["tenant:1", "tenant:2"], ["tenant:3"], ["tenant:4", "tenant:5"], ["tenant:6"]]
    assert sorted(keys(app)) == found


def test_p5_a_chunk_pays_for_each_of_its_parts(app: Any) -> None:
    app.tasks["bare"].limits = [RateLimit("api", "10/s", burst=5)]
    app.tasks["bare"].starmap([(1,), (2,), (3,)]).apply_async()
    (header,) = headers(app)
    assert header.links[0].cost == 3
    with pytest.raises(ResolutionError, match="smaller chunks"):
        app.tasks["bare"].starmap([(n,) for n in range(6)]).apply_async()


def test_the_ticket_is_the_task_id_and_another_for_each_publish(app: Any) -> None:
    for _ in range(2):
        app.tasks["send"].apply_async((7,), task_id="the.same")
    one, other = headers(app)
    assert task_id_of(one.ticket) == task_id_of(other.ticket) == "the.same"
    assert one.ticket != other.ticket


def test_an_inherited_header_is_replaced(app: Any) -> None:
    stale = {"limits": {"v": 1, "nonsense": True}}
    app.tasks["send"].apply_async((7,), headers=stale)
    app.tasks["bare"].apply_async(headers=stale)
    limited, plain = sent(app)
    assert read_header(limited.headers["limits"]).links[0].key == "tenant:7"
    assert "limits" not in plain.headers


def test_one_call_may_have_limits_of_its_own(app: Any) -> None:
    ship = app.tasks["send"]
    ship.apply_async((7,), limits=[RateLimit("api", "10/s")])
    ship.s(7).set(limits=[Concurrency("once:{order}", 1)]).apply_async()
    app.send_task("elsewhere", (1,), limits=[Concurrency("named", 1)])
    app.tasks["bare"].apply_async(limits=[Concurrency("plain", 1)])
    assert keys(app) == [["api"], ["once:0"], ["named"], ["plain"]]


def test_limits_deep_inside_a_canvas_survive_json(app: Any) -> None:
    ship, plain = app.tasks["send"], app.tasks["bare"]
    body = ship.si(9).set(limits=[Concurrency("deep", 2), RateLimit("api", "10/s", burst=3)])
    canvas = chain(plain.si(), chord([plain.si(), plain.si()], body))
    again = kombu_json.loads(kombu_json.dumps(canvas))
    found = [task for task in _walk(dict(again)) if task.get("options", {}).get("limits")]
    app.signature(found[0]).apply_async()
    assert keys(app)[-1] == ["deep", "api"]


def _walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "task" in node:
            yield node
        for value in node.values():
            yield from _walk(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _walk(value)


def test_a_callable_inside_a_canvas_is_refused_with_a_reason(app: Any) -> None:
    sig = app.tasks["send"].si(1).set(limits=[Concurrency(lambda tenant, order=0: "x", 1)])
    with pytest.raises(DeclarationError, match="key is a callable"):
        kombu_json.dumps(sig)


@pytest.mark.parametrize(
    ("name", "key"), [("annotated", "from-configuration"), ("based", "based"), ("shared", "shared")]
)
def test_limits_from_configuration_a_base_class_or_a_shared_task(app: Any, name: str, key: str) -> None:
    app.tasks[name].delay()
    assert keys(app) == [[key]]


def test_a_key_that_can_not_be_resolved_is_raised_to_the_publisher(app: Any) -> None:
    with pytest.raises(ResolutionError, match="send"):
        app.tasks["send"].delay(None)
    assert sent(app) == []


def test_an_empty_list_never_means_no_limits(app: Any) -> None:
    with pytest.raises(DeclarationError, match="empty"):
        app.tasks["send"].apply_async((1,), limits=[])
    assert sent(app) == []


def test_eager_tasks_touch_no_store(app: Any) -> None:
    app.conf.task_always_eager = True
    app.conf.limits_store_url = "redis://127.0.0.1:1/0"
    assert app.tasks["send"].apply_async((1,), limits=[OWN]).successful()


def test_an_unknown_argument_fails_when_the_app_is_finalized() -> None:
    app = Celery("bad", broker="memory://", set_as_current=False)
    app.task(shared=False, name="wrong", limits=[Concurrency("t:{tennant}", 1)])(takes_tenant)
    with pytest.raises(DeclarationError, match=r"tennant.*tenant"):
        app.finalize()


def test_g12_chains_in_opposite_orders_refuse_to_be_finalized() -> None:
    app = Celery("cycle", broker="memory://", set_as_current=False)
    a, b = Concurrency("a", 1), Concurrency("b", 1)
    app.task(shared=False, name="one", limits=[a, b])(takes_tenant)
    app.task(shared=False, name="other", limits=[b, a])(takes_tenant)
    with pytest.raises(DeadlockError, match=r"one[\s\S]*other"):
        app.finalize()


def test_settings_may_come_with_a_prefix_as_in_django() -> None:
    app = Celery("django", broker="memory://", set_as_current=False)
    app.config_from_object(
        type("settings", (), {"CELERY_LIMITS_NAMESPACE": "shop", "CELERY_LIMITS_LEASE": 5}), namespace="CELERY"
    )
    assert (Limits(app).settings.namespace, Limits(app).settings.lease) == ("shop", 5)


def test_a_misspelt_setting_is_refused_as_it_is_written_in_django() -> None:
    app = Celery("django", broker="memory://", set_as_current=False)
    app.config_from_object(type("settings", (), {"CELERY_LIMITS_LEESE": 5, "LIMITS_OF_ANOTHER": 1}), namespace="CELERY")
    with pytest.raises(
        ImproperlyConfigured, match=r"no setting CELERY_LIMITS_LEESE; did you mean CELERY_LIMITS_LEASE\?"
    ):
        Limits(app).settings  # noqa: B018


@pytest.mark.parametrize("limits", [[OWN], OWN, (OWN,)], ids=["list", "one", "tuple"])
def test_limit_without_its_s_is_refused(app: Any, limits: Any) -> None:
    wrong = Celery("wrong", broker="memory://", set_as_current=False)
    wrong.task(shared=False, name="wrong", limit=limits)(takes_tenant)
    with pytest.raises(DeclarationError, match=r"'wrong': limit=.*; did you mean limits="):
        wrong.finalize()
    with pytest.raises(DeclarationError, match=r"'send': limit=.*; did you mean limits="):
        app.tasks["send"].apply_async((1,), limit=limits)
    with pytest.raises(DeclarationError, match="did you mean limits="):
        app.tasks["send"].s(1).set(limit=limits).apply_async()
    assert sent(app) == []


def test_a_limit_that_is_no_limit_of_ours_is_the_users_own(app: Any) -> None:
    other = Celery("other", broker="memory://", set_as_current=False)
    other.task(shared=False, name="page", limit=50)(takes_tenant)
    other.finalize()


@pytest.mark.parametrize("how", ["revoke", "revoke_by_stamped_headers"])
def test_a_store_that_is_away_does_not_keep_workers_from_being_told(app: Any, how: str) -> None:
    app.conf.limits_store_url = "redis://127.0.0.1:1/0"
    told = getattr(app.control, how)("an-id" if how == "revoke" else {"stamp": "value"}, reply=True, timeout=0.01)
    assert told in ([], None), "nobody is there to answer, and that is all"


def run(app: Any, name: str, message: Any, body: Any) -> None:
    """What a worker does around a body, as far as a publish from within it can tell."""
    task = app.tasks[name]
    request = {**message.headers, "called_directly": False, "is_eager": False}
    args, kwargs, _ = message.payload
    task.push_request(**request, args=args, kwargs=kwargs, delivery_info={"exchange": "", "routing_key": "celery"})
    _task_stack.push(task)
    try:
        with pytest.raises((Retry, Ignore)):
            body(task)
    finally:
        _task_stack.pop()
        task.pop_request()


AGAIN = {
    "retry": lambda task: task.retry(),
    "countdown": lambda task: task.retry(countdown=60),
    "replace": lambda task: task.replace(task.si(*task.request.args)),
}


@pytest.mark.parametrize("how", AGAIN)
@pytest.mark.parametrize("key", ["once:{order}", lambda tenant, order=0: f"once:{order}"], ids=["template", "callable"])
def test_the_limits_of_a_call_go_with_its_retries(app: Any, how: str, key: Any) -> None:
    app.tasks["send"].apply_async((7, 5), limits=[Concurrency(key, 1), RateLimit("api", "10/s", burst=2)])
    found = []
    for _ in range(3):  # a retry of a retry too
        (message,) = sent(app)
        found.append(read_header(message.headers["limits"]))
        run(app, "send", message, AGAIN[how])
    assert [[link.key for link in header.links] for header in found] == [["once:5", "api"]] * 3
    first, rate = found[0].links
    retried = {} if how == "replace" else {"begun": True}
    assert found[2].links == (first.model_copy(update=retried), rate)
    assert len({header.ticket for header in found}) == 3
    sent(app)


def test_a_retry_with_other_arguments_has_the_keys_of_those(app: Any) -> None:
    app.tasks["send"].apply_async((7, 5), limits=[Concurrency("once:{order}", 1)])
    (message,) = sent(app)
    run(app, "send", message, lambda task: task.retry(args=(7, 6)))
    assert keys(app) == [["once:6"]]


def test_a_replacement_has_the_limits_of_its_own_declaration_or_signature(app: Any) -> None:
    app.tasks["bare"].apply_async(limits=[Concurrency("once", 1)])
    (message,) = sent(app)
    run(app, "bare", message, lambda task: task.replace(app.tasks["based"].si()))
    run(app, "bare", message, lambda task: task.replace(task.si().set(limits=[Concurrency("mine", 1)])))
    run(app, "bare", message, lambda task: task.replace(app.tasks["annotated"].si()))
    assert keys(app) == [["based"], ["mine"], ["from-configuration"]]


def test_another_task_that_the_body_calls_has_its_own_limits(app: Any) -> None:
    """Even where it passes on all headers of its own request."""

    def body(task: Any) -> None:
        app.tasks["send"].apply_async((9,), headers=task.request.headers)
        raise Ignore

    app.tasks["send"].apply_async((7, 5), limits=[Concurrency("once:{order}", 1)])
    (message,) = sent(app)
    run(app, "send", message, body)
    (published,) = sent(app)
    assert [link["key"] for link in published.headers["limits"]["links"]] == ["tenant:9"]
    assert CALL_HEADER not in published.headers


def test_chunks_carry_the_limits_that_are_set_on_them(app: Any) -> None:
    ship = app.tasks["send"]
    limits = [Concurrency("chunk", 1)]
    ship.chunks([(1,), (2,), (3,)], 2).set(limits=limits).apply_async()
    ship.chunks([(1,), (2,), (3,)], 2).apply_async(limits=limits)
    ship.starmap([(1,), (2,)]).set(limits=limits).apply_async()
    group(ship.si(1), ship.si(2)).set(limits=limits).apply_async()
    assert keys(app) == [["chunk"]] * 7
