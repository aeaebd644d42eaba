"""Newest wins in real workers: on our transport, on Celery's own with a store, and on RabbitMQ."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from celery import chord
from celery.exceptions import TaskRevokedError

from celery_limits import Concurrency
from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.worker.harness import Scene, Sent
from tests.worker.stage import is_alive
from tests.worker.test_events import listening

pytestmark = pytest.mark.own_broker

MANY = 300
PLACES = [("ours", "prefork"), ("ours", "threads"), ("redis", "prefork"), ("redis", "threads"), ("rabbitmq", "prefork")]


@pytest.fixture(params=PLACES, ids="-".join)
def pool(request: pytest.FixtureRequest, scene: Scene, broker: RedisServer) -> str:
    """The pool of the one worker; `scene` is turned to the broker."""
    place, pool = request.param
    configure(place, scene, broker, request)
    return str(pool)


def configure(place: str, scene: Scene, broker: RedisServer, request: pytest.FixtureRequest, **conf: Any) -> None:
    mine = {"limits_revoke_ttl": 600.0, "limits_lease": 30.0, **conf}
    if place == "ours":
        scene.configure(broker_url=f"limits+redis+socket://{broker.socket}", **mine)
    elif place == "redis":
        scene.configure(broker_url=f"redis+socket://{broker.socket}", **mine)
    else:
        node = request.getfixturevalue("node")
        scene.configure(broker_url=node.url, limits_store_url=broker.url, **mine)


def wait_revoked(sent: Sent) -> str:
    """Why it was revoked, as its result says."""
    error = sent.wait("REVOKED", within=60)
    assert isinstance(error, TaskRevokedError)
    return str(error)


# -- replace ------------------------------------------------------------------------------------------------------


def test_of_many_that_come_while_one_runs_the_last_runs(scene: Scene, pool: str) -> None:
    scene.start(pool)
    first = scene.send("newest", "first")
    scene.wait_started("first")
    rest = [scene.send("newest", f"n{i}") for i in range(MANY)]
    reasons = [wait_revoked(sent) for sent in rest[:-1]]
    assert scene.limits.status(scene.key).waiting == 1
    scene.stage.open_all()
    for sent in (first, rest[-1]):
        sent.get()
    ids = [sent.id for sent in rest]
    assert [entry.name for entry in scene.stage.starts()] == ["first", f"n{MANY - 1}"]
    successors = [reason.removeprefix("superseded by ") for reason in reasons]
    assert set(successors) <= set(ids)
    assert all(ids.index(by) > number for number, by in enumerate(successors)), "each by one that came later"
    story = scene.limits.explain(rest[0].id)
    assert (story.superseded_by, story.successor) == (successors[0], ids[-1])
    assert len([entry for entry in scene.stage.entries() if entry.what == "revoked"]) == MANY - 1


def test_a_member_of_a_chord_survives_and_its_chord_fires(scene: Scene, pool: str) -> None:
    scene.start(pool)
    first = scene.send("newest", "first")
    scene.wait_started("first")
    before = scene.send("newest", "before")
    tasks, kwargs = scene.app.tasks, {"key": scene.key}
    members = [tasks["newest"].si(name=name, how="done", **kwargs).set(queue=scene.queue) for name in ("m1", "m2")]
    body = tasks["plain"].si(name="body", **kwargs).set(queue=scene.queue)
    result = Sent(scene.app, chord(members)(body).id)
    linked = tasks["newest"].apply_async(
        kwargs={"name": "linked", **kwargs},
        queue=scene.queue,
        link=tasks["plain"].si(name="after", **kwargs).set(queue=scene.queue),
    )
    scene.wait_parked(4)
    rest = [scene.send("newest", f"n{i}") for i in range(5)]
    for sent in (before, *rest[:-1]):
        wait_revoked(sent)
    scene.stage.open_all()
    assert result.get() == "body"
    for sent in (first, rest[-1], Sent(scene.app, linked.id)):
        sent.get()
    assert sorted(scene.stage.names()) == sorted(["first", "m1", "m2", "linked", "n4", "body", "after"])
    scene.wait_started("after")


def test_two_publishers_at_once_leave_one_waiting(scene: Scene, pool: str) -> None:
    scene.start(pool)
    first = scene.send("newest", "first")
    scene.wait_started("first")
    sent: dict[str, list[Sent]] = {"a": [], "b": []}

    def publish(name: str) -> None:
        sent[name] += [scene.send("newest", f"{name}{i}") for i in range(50)]

    threads = [threading.Thread(target=publish, args=(name,)) for name in sent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = sent["a"] + sent["b"]
    wait_until(lambda: sum(one.state == "REVOKED" for one in every) == 99, "all but one are superseded", within=60)
    scene.stage.open_all()
    last = next(one for one in every if one.state != "REVOKED")
    last.get()
    first.get()
    assert last in (sent["a"][-1], sent["b"][-1])
    assert len(scene.stage.starts()) == 2


def test_an_event_tells_of_it(scene: Scene, broker: RedisServer, request: pytest.FixtureRequest) -> None:
    configure("ours", scene, broker, request)
    with listening(scene.app) as ear:
        scene.start("threads", "-E")
        first = scene.send("newest", "first")
        scene.wait_started("first")
        old, new = scene.send("newest", "old"), scene.send("newest", "new")
        ear.wait_for("limit-superseded", old.id)
        scene.stage.open_all()
        for sent in (first, new):
            sent.get()
    (event,) = [event for event in ear.events if event["type"] == "limit-superseded"]
    assert (event["uuid"], event["by"], event["name"]) == (old.id, new.id, "newest")
    assert "task-revoked" in ear.of(old.id)


@pytest.mark.parametrize("place", ["ours", "redis"])
def test_what_the_worker_declares_is_in_force_where_headers_are_not_trusted(
    scene: Scene, broker: RedisServer, request: pytest.FixtureRequest, place: str
) -> None:
    configure(place, scene, broker, request, limits_trust_headers=False)
    scene.start("threads", concurrency=8)
    first = scene.send("early", "first")
    scene.wait_started("first")
    claims: dict[str, Any] = {"limits": [Concurrency("{key}", 1, on_full="replace")]}
    waiting = [scene.send("early", f"w{i}", **claims) for i in range(3)]  # what it claims is at the cost of others
    scene.wait_parked(3)
    scene.stage.open("first")
    first.get()
    scene.stage.open_all()
    for sent in waiting:
        sent.get()
    scene.stage.close("*")
    again = scene.send("newest", "again")
    scene.wait_started("again")
    humble: dict[str, Any] = {"limits": [Concurrency("{key}", 1)]}
    rest = [scene.send("newest", f"n{i}", **humble) for i in range(3)]
    for sent in rest[:-1]:
        wait_revoked(sent)
    scene.stage.open_all()
    for sent in (again, rest[-1]):
        sent.get()


# -- preempt ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["ours", "redis", "rabbitmq"])
def test_a_newcomer_starts_when_the_body_before_it_is_dead(
    scene: Scene, broker: RedisServer, request: pytest.FixtureRequest, place: str
) -> None:
    configure(place, scene, broker, request)
    scene.start("prefork")
    old = scene.send("urgent.deaf", "old")
    pid = scene.wait_started("old").pid
    new = scene.send("urgent", "new")
    wait_until(lambda: [e for e in scene.stage.entries() if e.what == "signalled"], "the old body is told to end")
    assert wait_revoked(old) == f"superseded by {new.id}"
    assert scene.limits.store.superseded_by(scene.limits.explain(old.id).tickets[0].ticket) == new.id
    assert is_alive(pid)
    (holder,) = scene.limits.status(scene.key).holders
    assert holder.task_id == old.id, "the slot is taken as long as the body lives"
    assert scene.stage.starts("new") == []
    scene.stage.open("old-heeds")
    scene.wait_started("new")
    scene.stage.open_all()
    new.get()
    assert scene.limits.explain(old.id).successor == new.id


def test_a_body_on_another_worker_is_ended_at_once(
    scene: Scene, broker: RedisServer, request: pytest.FixtureRequest
) -> None:
    configure("ours", scene, broker, request, worker_enable_remote_control=False)
    for _ in range(2):
        scene.start("prefork", concurrency=1)
    pids = []
    sent = []
    for number in range(4):
        sent.append(scene.send("urgent", f"u{number}"))
        pids.append(scene.wait_started(f"u{number}", within=10).pid)
    for number in range(3):
        assert wait_revoked(sent[number]) == f"superseded by {sent[number + 1].id}"
    scene.stage.open_all()
    sent[-1].get()
    assert len({entry.more["worker"] for entry in scene.stage.starts()}) == 2


@pytest.mark.parametrize("place", ["ours", "redis"])
def test_where_a_body_cannot_be_ended_the_newcomer_waits(
    scene: Scene, broker: RedisServer, request: pytest.FixtureRequest, place: str
) -> None:
    configure(place, scene, broker, request)
    worker = scene.start("threads")
    old = scene.send("urgent", "old")
    scene.wait_started("old")
    (story,) = scene.limits.explain(old.id).tickets
    middle = scene.send("urgent", "middle")
    scene.wait_parked()
    new = scene.send("urgent", "new")
    assert wait_revoked(middle) == f"superseded by {new.id}"
    worker.wait_for_log("this pool can't end a body")
    assert scene.limits.store.superseded_by(story.ticket) == middle.id
    assert scene.stage.starts("new") == []
    scene.stage.open_all()
    old.get()
    new.get()


def test_a_member_of_a_chord_is_not_preempted(
    scene: Scene, broker: RedisServer, request: pytest.FixtureRequest
) -> None:
    configure("ours", scene, broker, request)
    scene.start("prefork")
    kwargs = {"key": scene.key}
    member = scene.app.tasks["urgent"].si(name="member", **kwargs).set(queue=scene.queue)
    other = scene.app.tasks["plain"].si(name="other", **kwargs).set(queue=scene.queue)
    body = scene.app.tasks["plain"].si(name="body", **kwargs).set(queue=scene.queue)
    result = Sent(scene.app, chord([member, other])(body).id)
    scene.wait_started("member")
    new = scene.send("urgent", "new")
    scene.wait_parked()
    scene.stage.open_all()
    assert result.get() == "body"
    new.get()


# -- debounce -----------------------------------------------------------------------------------------------------


def test_only_the_last_of_a_burst_passes(scene: Scene, pool: str) -> None:
    scene.start(pool)
    sent = [scene.send("calm", f"c{i}") for i in range(20)]
    sent[-1].get()
    for one in sent[:-1]:
        assert wait_revoked(one).startswith("superseded by ")
    (entry,) = scene.stage.starts()
    assert entry.name == "c19"


def test_under_steady_traffic_one_runs_every_at_most_seconds(scene: Scene, pool: str) -> None:
    scene.start(pool)
    stop, sent = threading.Event(), list[Sent]()

    def publish() -> None:
        while not stop.is_set():
            sent.append(scene.send("calm", f"c{len(sent)}"))
            stop.wait(0.05)

    thread = threading.Thread(target=publish)
    began = time.monotonic()
    thread.start()
    try:
        wait_until(lambda: len(scene.stage.starts()) == 3, "three have run", within=30)
    finally:
        stop.set()
        thread.join()
    starts = [entry.at - began for entry in scene.stage.starts()]
    gaps = [later - earlier for earlier, later in zip([0.0, *starts], starts, strict=False)]
    assert all(at > 2 * number for number, at in enumerate(starts, 1)), "never sooner than at_most"
    assert all(gap < 8 for gap in gaps), gaps
    wait_until(lambda: all(one.state in ("SUCCESS", "REVOKED") for one in sent), "all have ended", within=60)
