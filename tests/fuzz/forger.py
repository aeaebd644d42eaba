"""Messages of a seeded forger: an ordinary one, of which something is replaced, left out or added.

On our own transport anything may come. On other brokers it leaves out what ends a worker without limits too, which is
Celery's own affair there.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

from celery_limits.errors import CorruptChain
from celery_limits.message.header import read_header
from tests.worker.raw import envelope, protocol_1, protocol_2

__all__ = ["Forger", "shown"]

LIMITED = ("early.quick", "late.quick", "rated")
TYPED = {"__type__": "datetime", "__value__": 5}
JUNK: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 5, 2**53, -(2**62), 0.5, -1e300, float("nan"), float("inf"),
    "", "x", "high", "5", "\x00", "\ud800", "ü" * 50, "\n[2026] ERROR forged",
    [], [[]], ["x"], [None, None], [1, 2, 3], {}, {"": None}, {"key": 1}, {"task": {}, "eta": []}, TYPED,
    [[[[[[[[]]]]]]]], '{"limits": {"v": 1, "ticket": "' * 20,
)  # fmt: skip
HEADERS = (
    "timelimit", "shadow", "stamped_headers", "stamps", "retries", "root_id", "parent_id", "group", "group_index",
    "ignore_result", "argsrepr", "kwargsrepr", "origin", "lang", "meth", "limits", "limits_worker", "limits_waits",
    "limits_sent", "redelivered", "replaced_task_nesting", "argv", "headers",
)  # fmt: skip
FATAL_HEADERS = ("id", "task", "eta", "expires", "compression")
EMBEDDED = (
    "callbacks",
    "errbacks",
    "chain",
    "chord",
    "id",
    "task",
    "limits",
    "limits_worker",
    "group",
    "args",
    "kwargs",
)
OLD = ("timelimit", "taskset", "callbacks", "errbacks", "chord", "retries", "argsrepr", "limits", "limits_worker")
PROPERTIES = (
    "priority",
    "reply_to",
    "correlation_id",
    "expiration",
    "delivery_mode",
    "timestamp",
    "type",
    "exchange",
    "x",
)
FATAL_PROPERTIES = ("delivery_info", "delivery_tag", "body_encoding")


class Forger:
    """`call` is what an ordinary call of a limited task has as its keyword arguments."""

    def __init__(self, seed: int, queue: str, call: dict[str, Any], site: str, *, trusted: bool) -> None:
        self._queue, self._call, self._trusted = queue, call, trusted
        self._random = random.Random(seed)
        self._ours = site == "limits+redis"
        self._text_only = site == "rabbitmq"  # an AMQP property has a kind, and a table has no value of any other

    def message(self) -> Any:
        return self._harmful() if self._ours else self._foreign()

    def _foreign(self) -> Any:
        """What our own code has to deal with, on any broker."""
        kinds = (
            self._arguments,
            self._headers,
            self._embed,
            self._signatures,
            self._properties,
            self._map,
            self._old,
            self._chain,
        )
        return self._random.choice(kinds)()

    def _harmful(self) -> Any:
        """Anything, for our own transport."""
        kinds: tuple[Callable[[], Any], ...] = (
            self._foreign,
            self._fatal,
            self._unlimited,
            self._body,
            self._no_message,
        )
        return self._random.choice(kinds)()

    # -- kinds -------------------------------------------------------------------------------------------------------

    def _arguments(self) -> Any:
        args, kwargs = self._random.choice([(self._junk(), {}), ([], self._junk()), (self._junk(), self._junk())])
        return self._made(self._task(), args, kwargs)

    def _headers(self) -> Any:
        names = self._random.sample(HEADERS, self._random.randint(1, 3))
        return self._made(self._task(), [], self._call, headers={name: self._junk() for name in names})

    def _embed(self) -> Any:
        embed = {name: self._junk() for name in self._random.sample(EMBEDDED, self._random.randint(1, 3))}
        whole = self._random.random() < 0.3
        return self._made(self._task(), self._random.choice([[], 5]), self._call, self._junk() if whole else embed)

    def _signatures(self) -> Any:
        """Callbacks that look like some, and are none."""
        name = self._random.choice(["callbacks", "errbacks", "chain"])
        made = {"task": self._junk(), "args": self._junk(), "kwargs": self._junk(), "options": self._junk()}
        return self._made(self._task(), self._random.choice([[], 5]), self._call, {name: [made]})

    def _properties(self) -> Any:
        names = ("reply_to", "correlation_id") if self._text_only else PROPERTIES
        junk = self._text if self._text_only else self._junk
        properties = {name: junk() for name in self._random.sample(names, self._random.randint(1, 2))}
        return self._made(self._task(), [], self._call, properties=properties)

    def _map(self) -> Any:
        inner = self._random.choice([{"task": "early.quick"}, {"task": self._junk()}, self._junk()])
        items = self._random.choice([[[self._call["key"], "mapped"]], [self._junk()], self._junk()])
        args, kwargs = self._random.choice(
            [([], {"task": inner, "it": items}), ([inner], {"it": items}), ([inner, items], {})]
        )
        return self._made(self._random.choice(["celery.map", "celery.starmap"]), args, kwargs)

    def _chain(self) -> Any:
        """A chain of its own, of which some part is wrong or odd, or none."""
        task_id = self._id()
        link = {"kind": "concurrency", "key": self._call["key"], "limit": 1}
        limits = {"v": 1, "ticket": f"{task_id}.1", "links": [link], "at": 0, "held": [], "fence": 0}
        for _ in range(self._random.randint(0, 2)):
            place = self._random.choice([limits, link])
            place[self._random.choice([*place, "more"])] = self._junk()
        if self._trusted and _is_sound(
            limits
        ):  # where headers are trusted, a producer may choose its limits: that is no forgery
            limits["links"] = [{"kind": "concurrency", "key": self._call["key"], "limit": 1}]
        return self._made(self._task(), [], self._call, headers={"id": task_id, "limits": limits})

    def _old(self) -> Any:
        """Protocol 1 has everything in its body. Celery itself needs its keyword arguments to be a mapping."""
        names = (
            "timelimit",
            "taskset",
            "callbacks",
            "errbacks",
            "chord",
            "retries",
            "argsrepr",
            "limits",
            "limits_worker",
        )
        fields = {"id": self._id(), **{name: self._junk() for name in self._random.sample(names, 2)}}
        task = self._task()
        call = self._call_of(task)
        args, kwargs = self._random.choice([([], call), (self._junk(), call), (self._junk(), {})])
        return protocol_1(self._queue, task, args, kwargs, fields=fields)

    def _fatal(self) -> Any:
        headers = {self._random.choice(FATAL_HEADERS): self._junk()}
        properties = {self._random.choice(FATAL_PROPERTIES): self._junk()} if self._random.random() < 0.5 else {}
        return self._made(self._task(), [], self._call, headers=headers, properties=properties)

    def _unlimited(self) -> Any:
        made = self._random.choice([self._headers, self._embed, self._properties, self._arguments])()
        made["headers"]["task"] = "plain"
        return made

    def _body(self) -> Any:
        headers = {"id": self._id(), "task": self._task()} if self._random.random() < 0.7 else {}
        made = envelope(self._queue, headers, self._junk())
        for name in self._random.sample(
            ["body", "content-type", "content-encoding", "headers"], self._random.randint(0, 2)
        ):
            made[name] = self._junk()
        return made

    def _no_message(self) -> Any:
        whole = self._random.choice(
            [self._junk(), self._random.randbytes(20), self._made(self._task(), [], self._call)]
        )
        if isinstance(whole, dict) and whole:
            del whole[self._random.choice(list(whole))]
        return whole if isinstance(whole, bytes) else json.dumps(whole)

    # -- parts -------------------------------------------------------------------------------------------------------

    def _made(self, task: str, args: Any, kwargs: Any, embed: Any = None, **options: Any) -> dict[str, Any]:
        options["headers"] = {"id": self._id(), **options.get("headers", {})}
        kwargs = self._call_of(task) if kwargs is self._call else kwargs
        return protocol_2(self._queue, task, args, kwargs, embed, **options)

    def _call_of(self, task: str) -> dict[str, Any]:
        """A rate lets any number run at once: its bodies are counted apart from those of the others."""
        return {**self._call, "key": f"{self._call['key']}:rated"} if task == "rated" else self._call

    def _task(self) -> str:
        return self._random.choice(LIMITED)

    def _id(self) -> str:
        return str(UUID(int=self._random.getrandbits(128)))

    def _text(self) -> str:
        return self._random.choice(["", "x", "high", "ü" * 50, "\n[2026] ERROR forged"])

    def _junk(self) -> Any:
        found = self._random.choice(JUNK)
        if self._text_only and (found != found or found in (float("inf"), "\ud800")):
            return None
        if found == TYPED and not self._ours:  # kombu itself fails at it
            return {}
        return json.loads(json.dumps(found))  # a copy


def _is_sound(limits: Any) -> bool:
    try:
        read_header(limits)
    except CorruptChain:
        return False
    return True


def shown(message: Any) -> str:
    """For a person, with the body as it was before it was encoded."""
    if isinstance(message, dict) and isinstance(message.get("body"), str):
        try:
            return repr({**message, "body": base64.b64decode(message["body"])})
        except ValueError:
            pass
    return repr(message)
