"""The load: publishes what the plan says, when it says so, and revokes what is to be revoked.

Before each publish the ledger is told what is meant, and after it that the broker has it; a call that has only the
first of the two may or may not exist.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from celery import chord, group
from celery.states import READY_STATES

from celery_limits.message.header import HEADER, VERSION, new_ticket
from tests.chaos.fleet import Fleet
from tests.chaos.ledger import Ledger
from tests.chaos.plan import Call, Plan
from tests.waiting import wait_until

__all__ = ["Load", "task_id_of"]


def task_id_of(plan: Plan, name: str) -> str:
    return f"{plan.profile.name}-{plan.seed}-{name}"


def _spec(call: Call, of: Call, on: str) -> dict[str, Any]:
    """What the checker must know of a call. RabbitMQ drops by itself what has expired in a queue, and tells nobody."""
    members = [member.name for member in of.members] if of.shape == "chord" and call is of else None
    spec = {"late": call.late, "names": call.names, "weight": call.weight, "retries": call.retries, "line": call.line}
    return {**spec, "hard": call.limit is not None, "members": members, "together": of.name if of.members else None,
            "alien": call.alien, "silent": on == "rabbitmq"}  # fmt: skip


def _alien_header(call: Call, task_id: str) -> dict[str, Any]:
    """One that would be let through at once by whoever reads only what he knows."""
    version = {"older": VERSION - 1, "newer": VERSION + 1}.get(call.alien, VERSION)
    kind = "quota" if call.alien == "unknown kind" else "concurrency"
    links = [{"kind": kind, "key": f"alien:{call.name}", "limit": 1}]
    return {"v": version, "ticket": new_ticket(task_id), "links": links, "at": 0, "held": [], "fence": 0}


class Load(threading.Thread):
    """Runs until the plan is at its end or `stopped`."""

    def __init__(self, fleet: Fleet, plan: Plan) -> None:
        super().__init__(name="chaos-load", daemon=True)
        self._fleet, self._plan = fleet, plan
        self._ledger: Ledger = fleet.ledger
        self.app: Any = fleet.publisher()
        self.stopped = threading.Event()
        self.failure: BaseException | None = None
        self._lines: list[threading.Thread] = []
        self._meant: dict[str, dict[str, Any]] = {}
        self._unanswered = [call for call in plan.calls if call.alien or call.revoke or call.expires or call.limit]

    def redeclare(self) -> None:
        """The publisher is deployed too."""
        self.app = self._fleet.publisher()

    def run(self) -> None:
        began = time.monotonic()
        todo: list[tuple[float, int, Callable[[], None]]] = []
        for number, call in enumerate(self._plan.calls):
            todo.append((call.at, number, partial(self._publish, call)))
            if call.revoke is not None:
                after, terminate = call.revoke
                todo.append((call.at + after, number, partial(self._revoke, call, terminate=terminate)))
        try:
            for at, _, do in sorted(todo, key=lambda each: each[:2]):
                if self.stopped.wait(max(0.0, began + at - time.monotonic())):
                    break
                do()
        except BaseException as error:
            self.failure = error
            raise
        finally:
            for line in self._lines:
                line.join()
            gc.collect()  # results that nobody asks for say goodbye to their backend while it is there

    # -- publishing ------------------------------------------------------------------------------------------------

    def _publish(self, call: Call) -> None:
        if call.shape == "line":
            thread = threading.Thread(target=self._publish_line, args=(call,), daemon=True)
            thread.start()
            self._lines.append(thread)
            return
        signatures = {each.name: self._signature(each) for each in call.everyone()}
        for each in call.everyone():
            self._say("means", each, **self._meant[each.name], **_spec(each, call, self._plan.on))
        try:
            if call.alien:
                self._publish_alien(call, signatures[call.name])
            elif call.shape == "call":
                signatures[call.name].apply_async()
            else:
                header = group([signatures[member.name] for member in call.members])
                (chord(header, signatures[call.name]) if call.shape == "chord" else header).apply_async()
        except Exception as error:
            for each in call.everyone():  # a group has no call of its own
                self._say("doubts", each, error=repr(error))
            return
        for each in call.everyone():
            self._say("published", each)

    def _publish_line(self, call: Call) -> None:
        """The others only when the first runs: then their order is that in which they come to the store."""
        first = replace(call, members=(), shape="call")
        since = self._ledger.path.stat().st_size
        self._publish(first)

        def started() -> bool:
            return any(line.what == "start" and line.call == call.name for line in self._ledger.follow(since))

        try:
            wait_until(lambda: started() or self.stopped.wait(0.2), f"{call.name} starts", within=60)
        except AssertionError:
            return  # a line that never came about is no line
        for member in call.members:
            self._publish(member)

    def _signature(self, call: Call) -> Any:
        kwargs: dict[str, Any] = {"call": call.name, "seconds": call.seconds, "ending": call.ending, **call.names}
        if call.weight != 1:
            kwargs["weight"] = call.weight
        options: dict[str, Any] = {"task_id": task_id_of(self._plan, call.name), "headers": {"x_chaos": call.name}}
        meant: dict[str, Any] = {}
        now = datetime.now(timezone.utc)
        if call.delay is not None:
            options["eta"] = now + timedelta(seconds=call.delay)
            meant["eta"] = options["eta"].timestamp()
        if call.expires is not None:
            options["expires"] = now + timedelta(seconds=call.expires)
            meant["expires"] = options["expires"].timestamp()
        if call.priority is not None:
            options["priority"] = meant["priority"] = call.priority
        if call.limit is not None:
            options["time_limit"] = call.limit
        self._meant[call.name] = meant
        return self.app.tasks[call.task].signature(kwargs=kwargs, options=options)

    def _publish_alien(self, call: Call, signature: Any) -> None:
        """As a publisher of another version would: our own stamps every message that it sends."""
        task_id = signature.options["task_id"]
        message = self.app.amqp.as_task_v2(task_id, call.task, kwargs=signature.kwargs)
        headers = {**message.headers, **signature.options["headers"], HEADER: _alien_header(call, task_id)}
        with self.app.producer_or_acquire() as producer:
            producer.publish(
                message.body, exchange="", routing_key="chaos", headers=headers, serializer="json", retry=True,
                retry_policy=self.app.conf.task_publish_retry_policy, **message.properties,
            )  # fmt: skip

    def ask_for_results(self) -> None:
        """Of the calls that may end without having run: what became of them is in their results alone."""
        for call in [call for call in self._unanswered if call.name in self._meant]:
            found = self.app.backend.get_task_meta(task_id_of(self._plan, call.name))
            if found["status"] in READY_STATES:
                self._unanswered.remove(call)
                self._say("result", call, status=found["status"], error=type(found["result"]).__name__)

    def _say(self, what: str, call: Call, **more: Any) -> None:
        self._ledger.note(what, call.name, **more)

    def _revoke(self, call: Call, *, terminate: bool) -> None:
        self._say("revoking", call, terminate=terminate)
        try:
            self.app.control.revoke(task_id_of(self._plan, call.name), terminate=terminate, signal="SIGTERM")
        except Exception as error:
            self._say("revoke failed", call, error=repr(error))
            return
        self._say("revoked", call)
