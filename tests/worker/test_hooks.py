"""What we rely on in Celery and kombu, named one by one: a new version that changes one fails here, and says which."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from billiard import pool
from billiard.pool import ApplyResult
from celery import Celery, bootsteps
from celery.app.amqp import AMQP
from celery.app.control import Control, Inspect
from celery.concurrency import asynpool
from celery.concurrency.base import BasePool
from celery.concurrency.prefork import TaskPool as Prefork
from celery.concurrency.thread import TaskPool as Threads
from celery.events import EventDispatcher
from celery.worker import WorkController, components, state, strategy
from celery.worker.consumer import Consumer
from celery.worker.consumer.mingle import Mingle
from celery.worker.request import Request
from kombu import common, messaging
from kombu.asynchronous.hub import Hub
from kombu.utils.imports import symbol_by_name

import celery_limits
from celery_limits import install as hooks
from celery_limits.worker.steps import LimitsStep, QueueMarks

TAKES: list[tuple[Callable[..., Any], tuple[str, ...]]] = [
    (WorkController._process_task, ("self", "req")),
    (WorkController._process_task_sem, ("self", "req")),
    (Request.on_accepted, ("self", "pid", "time_accepted")),
    (Request.on_timeout, ("self", "soft", "timeout")),
    (Request.acknowledge, ("self",)),
    (Request.reject, ("self", "requeue")),
    (Request.revoked, ("self",)),
    (Request.terminate, ("self", "pool", "signal")),
    (Consumer.on_unknown_task, ("self", "body", "message", "exc")),
    (Mingle.on_node_reply, ("self", "c", "nodename", "reply")),
    (strategy.hybrid_to_proto2, ("message", "body")),
    (Request._announce_revoked, ("self", "reason", "terminated", "signum", "expired")),
    (Consumer.call_soon, ("self", "p")),
    (messaging.Consumer._basic_consume, ("self", "queue", "consumer_tag", "no_ack", "nowait")),
    (messaging.Consumer._receive_callback, ("self", "message")),
    (messaging.Consumer._add_tag, ("self", "queue", "consumer_tag")),
    (AMQP._create_task_sender, ("self",)),
    (asynpool.AsynPool._event_process_exit, ("self", "hub", "proc")),
    (Control.revoke, ("self", "task_id")),
    (Control.revoke_by_stamped_headers, ("self", "headers")),
    (Inspect._request, ("self", "command")),
    (EventDispatcher.send, ("self", "type")),
    (state.task_ready, ("request",)),
]


@pytest.mark.parametrize(("function", "expected"), TAKES, ids=lambda value: getattr(value, "__qualname__", ""))
def test_it_takes_what_we_pass(function: Callable[..., Any], expected: tuple[str, ...]) -> None:
    names = tuple(inspect.signature(function).parameters)
    assert names[: len(expected)] == expected, f"{function.__qualname__} takes {names} now"


def test_a_pool_that_lost_its_broker_is_flushed_and_what_we_read_of_its_jobs_is_there() -> None:
    assert "self.pool.flush()" in inspect.getsource(Consumer.on_close)
    source = inspect.getsource(asynpool)
    for name in ("def flush(self)", "job._accepted", "job._write_to = proc", "outbound_buffer.clear()", "inqW_fd"):
        assert name in source, f"{name} is gone: see patches/asynpool.py"
    assert "_accept_callback" in inspect.getsource(ApplyResult._ack)


def test_a_result_frees_the_place_first_and_is_told_then() -> None:
    source = inspect.getsource(pool.ResultHandler._make_methods)
    assert "READY: on_ready" in source, "worker/prefork.py stands in for it"
    assert "def on_ready(job, i, obj, inqW_fd):" in source
    assert "state_handlers[state](*args)" in source
    assert source.index("putlock.release()") < source.index("item._set(i, obj)")
    assert "semaphore = w.semaphore = LaxBoundedSemaphore" in inspect.getsource(components.Pool.create)


def test_a_pool_of_threads_shows_what_no_thread_has_begun() -> None:
    threads = Threads(limit=1)
    assert threads.executor._work_queue.qsize() == 0, "worker/port.py looks there"
    threads.executor.shutdown()


def test_a_loop_can_be_woken_or_says_that_it_can_not() -> None:
    hub = Hub()
    assert hasattr(hub, "_waker") == ("_wake_pending" in inspect.getsource(Hub.call_soon)), "see worker/steps.py"
    hub.close()


def test_a_producer_declares_what_it_publishes_to_by_a_method_that_can_be_replaced() -> None:
    assert "maybe_declare = self.maybe_declare" in inspect.getsource(messaging.Producer._publish)
    assert "declared_entities" in inspect.getsource(common._maybe_declare)
    assert "hash(entity)" in inspect.getsource(common._maybe_declare), "see patches/publishing.py"


def test_a_request_accepts_attributes_of_ours() -> None:
    assert "__dict__" in dir(Request), "request_hooks attaches the passage to the request itself"
    assert Request._already_cancelled is False, "passage.Passage asks whether a message was left to the broker"


def test_the_pool_tells_apart_who_queues_by_itself() -> None:
    assert (Prefork.uses_semaphore, Threads.uses_semaphore, BasePool.uses_semaphore) == (True, False, False)


def test_the_worker_hands_requests_over_through_an_attribute_that_can_be_replaced() -> None:
    source = inspect.getsource(components.Pool.create)
    assert "w.process_task = w._process_task" in source
    assert "self._process_task" in inspect.getsource(WorkController._process_task_sem)


def test_events_have_groups_that_can_be_added_to() -> None:
    app = Celery(broker="memory://", set_as_current=False)
    with app.connection_for_write() as connection:
        dispatcher = EventDispatcher(connection, app=app, enabled=False, groups=["worker"])
        assert dispatcher.groups == {"worker"}
        assert EventDispatcher(connection, app=app, enabled=False).groups == set(), "which means all"


def test_our_step_starts_before_the_pool_and_so_stops_after_it() -> None:
    app = Celery(set_as_current=False)
    named = [symbol_by_name(step) for step in components.Pool.requires]
    assert LimitsStep in named
    assert LimitsStep in {symbol_by_name(step) for step in app.steps["worker"]}
    assert QueueMarks in {symbol_by_name(step) for step in app.steps["consumer"]}
    assert "symbol_by_name(step)" in inspect.getsource(bootsteps.Blueprint.load_step), "steps may be named"


def test_the_result_is_stored_before_task_postrun() -> None:
    source = inspect.getsource(__import__("celery.app.trace", fromlist=["build_tracer"]).build_tracer)
    assert source.index("mark_as_done") < source.index("send_postrun(sender")


def test_the_commands_that_revoke_are_where_we_extend_them() -> None:
    from celery.worker import control  # noqa: PLC0415

    for name, takes in (
        ("revoke", ("state", "task_id")),
        ("terminate", ("state", "signal", "task_id")),
        ("revoke_by_stamped_headers", ("state", "headers")),
    ):
        ours = control.Panel.data[name]
        assert ours is not getattr(control, name), f"{name} is Celery's own: see patches/panel.py"
        assert tuple(inspect.signature(getattr(control, name)).parameters)[: len(takes)] == takes


def test_installing_twice_does_nothing() -> None:
    before = Celery.__init__, Celery.finalize, AMQP._create_task_sender, Control.revoke
    hooks.install()
    assert (Celery.__init__, Celery.finalize, AMQP._create_task_sender, Control.revoke) == before


def test_the_worker_has_our_flags() -> None:
    app = Celery(set_as_current=False)
    flags = {name for option in app.user_options["worker"] for name in option.opts}
    assert {"--limits-store", "--limits-lease", "--limits-namespace"} <= flags


def test_an_app_that_was_made_before_the_import_is_limited_too() -> None:
    script = """
from celery import Celery, bootsteps
app = Celery("early", broker="memory://")
app.amqp.send_task_message
import celery_limits
assert "celery_limits.worker.steps:LimitsStep" in app.steps["worker"]
@app.task(name="t", limits=[celery_limits.Concurrency("k", 1)])
def t(): pass
app.tasks["t"].delay()
with app.connection() as connection:
    assert "limits" in app.amqp.queues["celery"](connection.default_channel).get(no_ack=True).headers
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_public_surface_is_what_the_design_says() -> None:
    for name in ("Concurrency", "FloatingConcurrency", "RateLimit", "Limits"):
        assert name in celery_limits.__all__
    for verb in ("status", "explain", "resize", "reset", "pause", "resume", "cancel", "audit"):
        assert callable(getattr(celery_limits.Limits, verb))


def test_what_is_handed_to_the_prefork_pool_can_be_written_at_once() -> None:
    source = inspect.getsource(asynpool.AsynPool._create_write_handlers)
    assert "hub.consolidate_callback = schedule_writes" in source, "worker/prefork.py calls it"
    assert "mark_worker_as_busy(ready_fd)" in source
