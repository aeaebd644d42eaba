"""A task that ends in the store is reported as Celery would report it: result, chord, signal and event."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import chord, states
from celery.exceptions import TaskRevokedError
from freezegun import freeze_time

from celery_limits import Limits
from celery_limits.dispatch import report_end
from celery_limits.store.outcomes import Parked
from tests.cli.counter import Counter
from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.worker.harness import ROOT, Scene, Sent
from tests.worker.proj import build
from tests.worker.test_events import listening

pytestmark = pytest.mark.own_broker
BROKERS = ["redis", "limits+redis"]
SHAPES: dict[str, dict[str, Any]] = {
    "gzip": {"task_compression": "gzip"},
    "pickle": {"task_serializer": "pickle"},
    "yaml": {"task_serializer": "yaml"},
    "yaml and zlib": {"task_serializer": "yaml", "task_compression": "zlib"},
    "protocol 1": {"task_protocol": 1},
    "protocol 1, gzip": {"task_protocol": 1, "task_compression": "gzip"},
}
ACCEPTED = ["json", "pickle", "yaml"]


@pytest.fixture(params=BROKERS)
def url(broker: RedisServer, request: pytest.FixtureRequest) -> str:
    return f"{request.param}+socket://{broker.socket}"


@pytest.fixture
def held(scene: Scene, url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Scene:
    """A worker that runs the holder of the key; what comes next waits for it."""
    monkeypatch.setenv("C_FORCE_ROOT", "1")  # pickle
    scene.configure(broker_url=url, accept_content=ACCEPTED, **getattr(request, "param", {}))
    scene.start("prefork", "-E")
    scene.send("early", "holder")
    scene.wait_started("holder")
    return scene


def finish(scene: Scene) -> None:
    scene.stage.open_all()
    scene.wait_ended("holder")
    assert list(scene.stage.names()) == ["holder"]


@pytest.mark.parametrize("held", SHAPES.values(), ids=list(SHAPES), indirect=True)
def test_an_expired_task_and_its_chord_end(held: Scene) -> None:
    expired = held.send("early", "expired", expires=0.4)
    expired.wait(states.REVOKED)
    held.wait_parked(0)
    if held.app.conf.task_serializer != "yaml":  # in which Celery can't say what a chord is
        _chord_ends(held)
    finish(held)


def _chord_ends(held: Scene) -> None:
    kwargs = {"key": held.key, "name": "member"}
    header = [held.app.tasks["early"].si(**kwargs).set(queue=held.queue, expires=0.4)]
    body = held.app.tasks["plain"].si(key=held.key, name="body").set(queue=held.queue)
    Sent(held.app, chord(header)(body).id).wait(states.FAILURE)


def test_a_revoked_task_is_told_by_a_worker_with_its_signal_and_event(held: Scene) -> None:
    with listening(held.app) as ear:
        revoked, expired = held.send("early", "revoked"), held.send("early", "expired", expires=0.4)
        held.wait_parked(2)
        held.app.control.revoke(revoked.id)
        for sent in (revoked, expired):
            sent.wait(states.REVOKED)
            ear.wait_for("task-revoked", sent.id)
            assert ear.state.tasks[sent.id].state == states.REVOKED
        told = {event["uuid"]: event for event in ear.events if event["type"] == "task-revoked"}
    assert [(told[sent.id]["terminated"], told[sent.id]["signum"], told[sent.id]["expired"])
            for sent in (revoked, expired)] == [(False, None, False), (False, None, True)]  # fmt: skip
    heard = {entry.task_id: entry for entry in held.stage.entries() if entry.what == "revoked"}
    assert set(heard) == {revoked.id, expired.id}
    assert heard[revoked.id].more == {
        "terminated": False, "signum": None, "expired": False, "task": "early", "args": [], "pool": False,
    }  # fmt: skip
    assert heard[expired.id].more["expired"] is True
    finish(held)


@pytest.mark.parametrize("held", [{"result_backend": "rpc://"}], ids=["rpc"], indirect=True)
def test_who_waits_for_an_rpc_result_hears_of_its_end(held: Scene) -> None:
    def publish(name: str, **options: Any) -> Any:
        return held.app.tasks["early"].apply_async(kwargs={"key": held.key, "name": name}, queue=held.queue, **options)

    revoked, expired, cancelled = publish("revoked"), publish("expired", expires=0.4), publish("cancelled")
    wait_until(lambda: held.limits.status(held.key).waiting == 3 or expired.state == "REVOKED", "they wait")
    held.app.control.revoke(revoked.id)
    held.limits.cancel(cancelled.id)
    for sent in (revoked, expired, cancelled):
        with pytest.raises(TaskRevokedError):
            sent.get(timeout=20)
    finish(held)


def test_what_can_not_be_reported_is_said_once_tried_less_and_less_often_and_named_by_the_audit(
    broker: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that does not accept the message's content can't report its end; one that does, can."""
    monkeypatch.setattr(report_end, "FIRST_PAUSE", 0.01)
    conf = {"broker_url": f"redis+socket://{broker.socket}", "result_backend": "cache+memory://", "stage": ""}
    app = build({**conf, "limits_namespace": "untold"})
    app.finalize()
    limits = Limits(app)
    counter = Counter(limits)
    counter.bring("early", key="k", name="holder")
    task_id, parked = counter.bring("early", key="k", name="parked")
    assert isinstance(parked, Parked)
    limits.store.cancel(task_id, settle_within=0)
    app.conf.accept_content = ["pickle"]
    assert [_failed_attempt(limits) for _ in range(4)] == [10_000, 20_000, 40_000, 80_000]
    assert sum("could not report" in record.message for record in caplog.records) == 1
    (finding,) = limits.audit()
    assert (finding.code, finding.subject.partition(".")[0]) == ("unreported-end", task_id)
    assert "ended as revoked" in finding.message
    assert "failed 4 times" in finding.message
    assert "ContentDisallowed" in finding.message
    assert [one.code for one in limits.audit(repair=True)] == ["unreported-end"], "which is left to a person"
    app.conf.accept_content = ["json"]
    _wait_claimable(limits)
    assert limits.outbox.work_off() == 1
    assert app.AsyncResult(task_id).state == states.REVOKED
    assert "1 ends are reported now that could not be reported before" in caplog.text
    counter.finish(next(iter(counter.running)))
    limits.store.leave(counter.worker)
    assert limits.audit() == []


def _wait_claimable(limits: Limits) -> None:
    client: Any = limits.store.client
    outbox = f"{limits.store.prefix}outbox"
    wait_until(lambda: client.zrange(outbox, 0, 0, withscores=True)[0][1] < _now(client), "it can be claimed")


def _failed_attempt(limits: Limits) -> int:
    """The pause that follows, in microseconds."""
    _wait_claimable(limits)
    assert limits.outbox.work_off() == 0
    client: Any = limits.store.client
    ((ticket, due),) = client.zrange(f"{limits.store.prefix}outbox", 0, 0, withscores=True)
    failed_at = client.hget(f"{limits.store.prefix}unreported", ticket).split()[1]
    return int(due) - int(failed_at)


def _now(client: Any) -> float:
    seconds, micros = client.time()
    return float(seconds * 10**6 + micros)


def test_an_end_that_no_worker_reports_is_named_by_the_audit(broker: RedisServer) -> None:
    conf = {"broker_url": f"redis+socket://{broker.socket}", "result_backend": "cache+memory://", "stage": ""}
    limits = Limits(build({**conf, "limits_namespace": "late"}))
    limits.app.finalize()
    counter = Counter(limits)
    counter.bring("early", key="k", name="holder")
    task_id, _ = counter.bring("early", key="k", name="parked")
    limits.store.cancel(task_id, settle_within=0)
    with freeze_time(datetime.now(timezone.utc) + timedelta(hours=1)):
        limits.store._clock = lambda: time.time_ns() // 1000
        (finding,) = [finding for finding in limits.audit() if finding.code == "unreported-end"]
        limits.store._clock = None
    assert "ended as revoked 3600 s ago" in finding.message
    assert "no worker has tried to" in finding.message
    limits.outbox.work_off()
    counter.finish(next(iter(counter.running)))
    limits.store.leave(counter.worker)


def test_an_end_waits_for_a_result_backend_that_is_down(scene: Scene, url: str) -> None:
    """Said once in the log, named by the audit, and reported when the backend is back."""
    with RedisServer() as results:
        options = {"retry_policy": {"timeout": 0.5, "max_retries": 1, "interval_start": 0}}
        scene.configure(
            broker_url=url,
            result_backend=f"redis+socket://{results.socket}",
            result_backend_transport_options=options,
        )
        worker = scene.start("threads" if url.startswith("limits+") else "prefork")
        scene.send("early", "holder")
        scene.wait_started("holder")
        revoked = scene.send("early", "revoked")
        scene.wait_parked(1)
        results.stop()
        scene.limits.revoke(revoked.id)
        worker.wait_for_log("could not report")
        found = wait_until(scene.limits.audit, "the audit names it")
        assert [(one.code, one.subject.partition(".")[0]) for one in found] == [("unreported-end", revoked.id)]
        assert "ConnectionError" in found[0].message
        results.start()
        revoked.wait(states.REVOKED, within=40)
        scene.stage.open_all()
        scene.wait_ended("holder")
        scene.wait_quiet()
    assert worker.log.count("could not report") == 1


DJANGO = """
import sys
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django_celery_results"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[2]}}, USE_TZ=True,
)
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from celery import Celery
from celery_limits import Concurrency, Limits
app = Celery("site", broker=sys.argv[1], backend="django-db", set_as_current=True)
app.conf.update(result_extended=True, limits_namespace="django", task_compression="gzip")

@app.task(name="ship", limits=[Concurrency("tenant:{tenant}", 0)])
def ship(tenant): ...

sent = ship.delay("acme")
limits = Limits(app)
assert limits.status("tenant:acme").waiting == 1, limits.status("tenant:acme")
limits.cancel(sent.id)
from django_celery_results.models import TaskResult
row = TaskResult.objects.get(task_id=sent.id)
print(row.status, row.task_name, row.task_args)
"""


def test_a_django_database_is_told_all_that_a_worker_would_tell_it(broker: RedisServer, tmp_path: Any) -> None:
    command = [sys.executable, "-c", DJANGO, f"limits+redis+socket://{broker.socket}", str(tmp_path / "db")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["REVOKED", "ship", "\"('acme',)\""]
