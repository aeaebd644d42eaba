"""Headers written by others, in real workers: what a forged one can't do, with and without `limits_trust_headers`."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from celery import states

from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.worker.harness import Scene, Sent


def forge(
    scene: Scene,
    task: str,
    name: str,
    limits: Any,
    *,
    task_id: str = "",
    call: tuple[Any, Any] | None = None,
    **headers: Any,
) -> Sent:
    """Publishes a call whose headers are whatever the forger likes; on our own transport, as one that trusts itself."""
    task_id = task_id or uuid4().hex
    args, kwargs = call or ((), {"key": scene.key, "name": name})
    made, properties, body, _ = scene.app.amqp.as_task_v2(task_id, task, args=args, kwargs=kwargs)
    with scene.app.connection_for_write(transport_options={"limits_lines": True}) as connection:
        connection.Producer().publish(
            body,
            exchange="",
            routing_key=scene.queue,
            serializer="json",
            headers={**made, **({} if limits is None else {"limits": limits}), **headers},
            declare=[scene.app.amqp.queues[scene.queue]],
            **properties,
        )
    return Sent(scene.app, task_id)


def header(ticket: str, *links: dict[str, Any]) -> dict[str, Any]:
    return {"v": 1, "ticket": ticket, "links": list(links), "at": 0, "held": [], "fence": 0}


def slot(key: str, limit: int, **more: Any) -> dict[str, Any]:
    return {"kind": "concurrency", "key": key, "limit": limit, **more}


@pytest.fixture(params=["redis", "limits+redis"])
def strict(scene: Scene, broker: RedisServer, request: pytest.FixtureRequest) -> Scene:
    """A worker that trusts nobody."""
    scene.configure(limits_trust_headers=False, broker_url=f"{request.param}+socket://{broker.socket}")
    scene.start("prefork")
    return scene


def holder_of(scene: Scene) -> Sent:
    holder = scene.send("early", "holder")
    scene.wait_started("holder")
    return holder


def finish(scene: Scene, *sent: Sent) -> None:
    scene.stage.open_all()
    for one in sent:
        one.get()


def test_a_forged_header_neither_raises_nor_removes_a_limit(strict: Scene) -> None:
    holder = holder_of(strict)
    raised, removed = uuid4().hex, uuid4().hex
    one = forge(strict, "early.quick", "raised", header(f"{raised}.1", slot(strict.key, 50)), task_id=raised)
    strict.wait_parked(1)
    two = forge(strict, "early.quick", "removed", header(f"{removed}.1", slot("victim", 5)), task_id=removed)
    strict.wait_parked(2)
    assert strict.limits.status("victim").running == 0
    assert list(strict.stage.names()) == ["holder"]
    finish(strict, holder, one, two)


def test_a_forged_header_can_lower_a_limit(strict: Scene) -> None:
    """`pair` lets two run at once; who asks for one waits for the other to end."""
    strict.sizes[strict.key] = 2
    first = strict.send("pair", "first")
    strict.wait_started("first")
    task_id = uuid4().hex
    lowered = forge(strict, "pair", "lowered", header(f"{task_id}.1", slot(strict.key, 1)), task_id=task_id)
    strict.wait_parked(1)
    finish(strict, first, lowered)


def test_a_chain_that_waits_in_the_store_is_not_believed_when_its_turn_comes(strict: Scene) -> None:
    """A message whose first link is full goes straight into that line, with the chain of its publisher."""
    holder = holder_of(strict)
    other = f"{strict.key}:other"
    strict.limits.pause(other)
    forged = []
    for i in range(3):
        task_id = uuid4().hex
        chain = header(f"{task_id}.1", slot(other, 50))
        forged.append(forge(strict, "early.quick", f"forged{i}", chain, task_id=task_id))
    strict.wait_parked(3)
    strict.limits.resume(other)
    assert list(strict.stage.names()) == ["holder"]
    assert strict.limits.status(strict.key).running == 1
    finish(strict, holder, *forged)
    assert strict.limits.audit() == []


@pytest.mark.parametrize("form", ["positional", "mixed"])
def test_a_map_is_limited_however_its_arguments_are_given(strict: Scene, form: str) -> None:
    holder = holder_of(strict)
    inner, items = {"task": "early.quick", "args": [], "kwargs": {}}, [[strict.key, f"mapped-{form}"]]
    call = ((inner, items), {}) if form == "positional" else ((inner,), {"it": items})
    mapped = forge(strict, "celery.starmap", "", None, call=call)
    strict.wait_parked(1)
    assert list(strict.stage.names()) == ["holder"]
    finish(strict, holder, mapped)


def test_a_map_of_a_map_is_refused(strict: Scene) -> None:
    holder = holder_of(strict)
    inner = {"task": "early.quick", "args": [], "kwargs": {}}
    outer = {"task": "celery.starmap", "args": [], "kwargs": {}}
    nested = forge(strict, "celery.starmap", "", None, call=((outer, [[inner, [[strict.key, "nested"]]]]), {}))
    assert "a map of 'celery.starmap' is refused" in str(nested.wait(states.FAILURE))
    assert list(strict.stage.names()) == ["holder"]
    finish(strict, holder)


@pytest.mark.parametrize("scheme", ["redis", "limits+redis"])
@pytest.mark.parametrize("state", [{"fence": 1}, {"v": 2, "arrival": "1-" + "0" * 20}], ids=["fence", "arrival"])
def test_a_forged_place_in_line_is_none(scene: Scene, broker: RedisServer, scheme: str, state: dict[str, Any]) -> None:
    """Headers are trusted, and their chain is; a place in line is given by the store alone."""
    scene.configure(broker_url=f"{scheme}+socket://{broker.socket}")
    scene.start("prefork")
    holder = holder_of(scene)
    first = scene.send("early.quick", "first")
    scene.wait_parked(1)
    task_id = uuid4().hex
    chain = {**header(f"{task_id}.1", slot(scene.key, 1)), **state}
    forged = forge(scene, "early.quick", "forged", chain, task_id=task_id)
    scene.wait_parked(2)
    finish(scene, holder, first, forged)
    assert list(scene.stage.names()) == ["holder", "first", "forged"]


def test_limits_of_a_task_that_declares_none_are_left_out(strict: Scene) -> None:
    """They would let a stranger fill the key of another."""
    holder, task_id = holder_of(strict), uuid4().hex
    full = header(f"{task_id}.1", slot(strict.key, 1))
    assert forge(strict, "plain", "free", full, task_id=task_id).get() == "free"
    finish(strict, holder)


@pytest.mark.parametrize("trust", [True, False])
def test_the_end_of_one_task_never_releases_another(scene: Scene, trust: bool) -> None:
    """The forger knows all there is to know of the holder's admission: ticket, worker and fence."""
    scene.configure(limits_trust_headers=trust)
    scene.start("prefork")
    holder = holder_of(scene)
    (entry,) = scene.limits.status(scene.key).holders
    worker, ticket = entry.worker, entry.ticket
    fence = scene.limits.store.held_by(worker)[ticket]
    claim = {**header(ticket, slot(scene.key, 1)), "fence": fence}
    forged = forge(scene, "plain", "forged", claim, limits_worker=worker)
    assert type(forged.wait(states.FAILURE)).__name__ == "CorruptChain"
    bare = forge(scene, "plain", "bare", None, limits_worker=worker)
    assert bare.get() == "bare"
    same = forge(scene, "plain", "same", claim, task_id=holder.id, limits_worker=worker)
    if not trust:
        assert same.get() == "same"
    after = scene.send("plain", "after")
    assert after.get() == "after"
    assert [one.ticket for one in scene.limits.status(scene.key).holders] == [ticket]
    scene.stage.open_all()
    wait_until(lambda: scene.limits.status(scene.key).running == 0, "the holder has given back")


def test_a_forged_refresh_function_is_not_called(scene: Scene) -> None:
    """A trusted header may name any; the worker calls those that its own tasks declare."""
    scene.configure(limits_place_ttl=1.0)
    worker = scene.start("prefork")
    task_id = uuid4().hex
    link = {"kind": "floating", "key": f"{scene.key}:f", "default": 1, "every": 0.5, "refresh": "os:abort"}
    assert forge(scene, "plain", "forged", header(f"{task_id}.1", link), task_id=task_id).get() == "forged"
    worker.wait_for_log("no task of this app declares the refresh function 'os:abort'")
    assert worker.is_running
    assert "WorkerLostError" not in worker.log
