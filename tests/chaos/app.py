"""The Celery app of the chaos run: chains of one to four links, acknowledged early and late.

Publisher and workers build the same app with other settings. Its bodies keep the ledger: one says when it starts, while
it runs (so that the last proof of life of one that is killed is known), and that it came to its end; nothing it says
goes through a broker.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.worker.request import Request

from celery_limits import WORKERS, Concurrency, RateLimit
from tests.chaos.bugs import BUG, BUGS
from tests.chaos.ledger import Ledger
from tests.chaos.worker import NAME, watch
from tests.chaos.world import LINKS, rate_of, size_of

__all__ = ["CONF", "app", "build"]

CONF = "LIMITS_CHAOS_CONF"
"""The environment variable that has the configuration, as JSON."""

TICK = 0.2
"""Seconds between two proofs of life of a body."""


class Failed(Exception):
    """As told."""


class Witnessed(Request):  # type: ignore[misc]  # it comes without types
    """Says that a body is about to be started here, before an early acknowledgement."""

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        ledger = Ledger(self.task.app.conf.ledger)
        ledger.note("accepted", self.kwargs["call"], worker=self.hostname, id=self.id, child=pid)
        return super().on_accepted(pid, time_accepted)


def run(task: Any, call: str, seconds: float, ending: str, about: dict[str, Any]) -> Any:
    ledger, request = Ledger(task.app.conf.ledger), task.request
    run_id = f"{os.getpid()}-{time.monotonic_ns()}"
    mine = {"run": run_id, "id": request.id, "retries": request.retries, "worker": request.hostname}
    ledger.note("start", call, **mine, **about, priority=(request.delivery_info or {}).get("priority"),
                group=request.group, root=request.root_id, extra=request.get("x_chaos"))  # fmt: skip
    try:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(TICK, left))
            ledger.note("tick", call, run=run_id)
        if ending.startswith("retry") and request.retries < int(ending[5:]):
            ledger.note("retry", call, run=run_id)
            raise task.retry(countdown=0.3 if request.retries else 0, max_retries=10)
    except BaseException as error:
        ledger.note("torn", call, run=run_id, by=type(error).__name__)
        raise
    ledger.note("end", call, run=run_id)
    if ending == "fail":
        raise Failed(call)
    return call


def work(task: Any, call: str, seconds: float = 0.1, ending: str = "return", weight: int = 1, **names: str) -> Any:
    """The body of every chain."""
    return run(task, call, seconds, ending, {"names": names, "weight": weight})


def gather(task: Any, results: list[str], call: str, seconds: float = 0.1, ending: str = "return", **names: str) -> Any:
    """What a chord ends with."""
    return run(task, call, seconds, ending, {"names": names, "weight": 1, "results": sorted(results)})


def _sized(kind: str, declared: str) -> Callable[..., int]:
    return lambda *_, **arguments: size_of(f"{kind}:{arguments[kind]}", declared)


def chain_of(links: int, declared: str) -> list[Any]:
    """What tenants share, they share fairly."""
    concurrent: list[Any] = [
        Concurrency(
            _named(kind),
            _sized(kind, declared),
            weight=_weight if kind == "depot" else 1,
            fair_by=None if kind == "tenant" else _tenant,
        )
        for kind in LINKS[:links]
        if kind != "api"
    ]
    if links < len(LINKS):
        return concurrent
    return [*concurrent, RateLimit(_named("api"), _rated, burst=rate_of("")[1], fair_by=_tenant)]


def _named(kind: str) -> Callable[..., str]:
    def key(*_: Any, **arguments: Any) -> str:
        return f"{kind}:{arguments[kind]}"

    return KEYS.setdefault(kind, key)


KEYS: dict[str, Callable[..., str]] = {}
"""One function per kind of key: limits that share it share the key, in the eyes of the check for deadlocks."""


def _tenant(*_: Any, **arguments: Any) -> str:
    return str(arguments["tenant"])


def _weight(*_: Any, **arguments: Any) -> int:
    return int(arguments.get("weight", 1))


def _rated(*_: Any, **arguments: Any) -> str:
    per_second, _burst = rate_of(f"api:{arguments['api']}")
    return f"{per_second}/s"


def build(conf: dict[str, Any]) -> Any:
    """`conf["declared"]` says which set of limits is declared, `conf["ledger"]` where the ledger is."""
    app: Any = Celery("chaos", set_as_current=False)
    app.conf.update(
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # A publisher, a body that retries among them, waits until the broker is back.
        task_publish_retry_policy={
            "max_retries": 200,
            "interval_start": 0.1,
            "interval_step": 0.1,
            "interval_max": 0.5,
        },
        task_default_queue="chaos",
        worker_prefetch_multiplier=2,
        result_expires=7200,  # what did not run is asked for by its result
        # Read by the chord of a body that may be the last: it must not give up on a busy machine.
        result_backend_always_retry=True,
    )
    app.conf.update(conf)
    for acks in ("early", "late"):
        options = {"bind": True, "shared": False, "Request": Witnessed, "default_retry_delay": 0}
        if acks == "late":
            options |= {"acks_late": True, "reject_on_worker_lost": True}
        for links in range(1, len(LINKS) + 1):
            app.task(name=f"{acks}.{links}", limits=chain_of(links, conf["declared"]), **options)(work)
        app.task(name=f"{acks}.line", limits=[Concurrency(_named("line"), 1)], **options)(work)
        places = Concurrency("places", WORKERS, fair_by=_tenant)
        app.task(name=f"{acks}.gather", limits=[places, *chain_of(1, conf["declared"])], **options)(gather)
        app.task(name=f"{acks}.free", **options)(work)
    return app


class LostLeases(logging.Handler):
    """A worker that was cut off for longer than its lease says so; the ledger should know."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(logging.CRITICAL)
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        what = "lost" if "cut off from the store" in message else "losing" if "the lease lapses" in message else ""
        if what:
            self._ledger.note(what, worker=os.environ[NAME])


app = None
if CONF in os.environ:
    if os.environ.get(BUG):
        BUGS[os.environ[BUG]].put_in()
    app = build(json.loads(os.environ[CONF]))
    watch(Ledger(app.conf.ledger), os.environ[NAME])
    logging.getLogger("celery_limits.worker").addHandler(LostLeases(Ledger(app.conf.ledger)))
