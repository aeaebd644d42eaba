"""Tracing: the trace context of a task that waited is what its publisher wrote, and its span says what for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, signals
from celery.contrib.testing.worker import start_worker
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from celery_limits import Concurrency, Limits
from celery_limits.telemetry.tracing import EVENT
from tests.redis_server import RedisServer
from tests.waiting import wait_until

TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
    "baggage": "tenant=42;ttl=9, note=%C3%A9t%C3%A9",
}


class Shop:
    """An app whose task holds its key until `go_on` is set, and returns the trace context that it was called with."""

    def __init__(self, broker: str) -> None:
        self.go_on = threading.Event()
        self.app: Any = Celery("traced", broker=broker, backend="cache+memory://", set_as_current=False)
        self.app.conf.task_default_queue = "traced"

        @self.app.task(bind=True, shared=False, name="traced", limits=[Concurrency("traced-key", 1)])
        def traced(task: Any) -> dict[str, Any]:
            assert self.go_on.wait(60)
            return {name: getattr(task.request, name, None) for name in TRACE}

        @self.app.task(bind=True, shared=False, name="again", limits=[Concurrency("other-key", 1)])
        def again(task: Any) -> int:
            if task.request.retries == 0:
                raise task.retry(countdown=0)
            return int(task.request.retries)

    def wait_second(self) -> Any:
        """Two calls, of which the second has waited and ended; its result."""
        with start_worker(self.app, pool="threads", concurrency=2, perform_ping_check=False):
            limits = Limits(self.app)
            first = self.app.tasks["traced"].apply_async()
            wait_until(lambda: limits.status("traced-key").running == 1, "the first holds the key")
            second = self.app.tasks["traced"].apply_async(headers=TRACE)
            wait_until(lambda: limits.status("traced-key").waiting == 1, "the second waits")
            self.go_on.set()
            assert first.get(timeout=30) is not None
            return second.get(timeout=30)


@pytest.fixture(params=["redis+socket", "limits+redis+socket"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    with RedisServer() as server:
        yield Shop(f"{request.param}://{server.socket}")


def test_the_trace_context_of_one_that_waited_is_what_its_publisher_wrote(shop: Shop) -> None:
    assert shop.wait_second() == TRACE


@pytest.mark.parametrize("ours_first", [True, False])
def test_its_span_tells_what_it_has_waited_for(shop: Shop, ours_first: bool) -> None:
    """Whoever instruments Celery begins a span before the body and ends it after; before or after we are called."""
    tracer, spans = TracerProvider().get_tracer("test"), dict[str, Any]()

    def begin(task_id: str = "", **_: Any) -> None:
        spans[task_id] = span = trace.use_span(tracer.start_span("run"), end_on_exit=True)
        spans[f"{task_id} span"] = span.__enter__()

    def end(task_id: str = "", **_: Any) -> None:
        spans[task_id].__exit__(None, None, None)

    ours = signals.task_prerun.receivers[:], signals.task_postrun.receivers[:]
    signals.task_prerun.connect(begin, weak=False)
    signals.task_postrun.connect(end, weak=False)
    if not ours_first:
        signals.task_prerun.receivers.reverse()
        signals.task_postrun.receivers.reverse()
    try:
        shop.wait_second()
    finally:
        signals.task_prerun.receivers[:], signals.task_postrun.receivers[:] = ours
        signals.task_prerun.sender_receivers_cache.clear()
        signals.task_postrun.sender_receivers_cache.clear()
    events = [event for name, span in spans.items() if name.endswith(" span") for event in span.events]
    (event,) = [event for event in events if event.name == EVENT]
    assert event.attributes["limits.key"] == "traced-key"
    assert event.attributes["limits.seconds"] >= 0


def test_a_retry_inherits_nothing_of_ours(shop: Shop) -> None:
    published: list[list[str]] = []

    def note(headers: Any = None, **_: Any) -> None:
        published.append(sorted(name for name in headers if name.startswith("limits")))

    signals.before_task_publish.connect(note, sender="again")
    try:
        with start_worker(shop.app, pool="threads", concurrency=2, perform_ping_check=False):
            assert shop.app.tasks["again"].apply_async().get(timeout=30) == 1
    finally:
        signals.before_task_publish.disconnect(note, sender="again")
    assert published == [["limits"], ["limits"]]
