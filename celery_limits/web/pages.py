"""What each page shows, and `/api/…`: the same reads as the command line's. Arguments of tasks are never read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kombu.exceptions import OperationalError

from celery_limits.app.handle import Limits
from celery_limits.app.summary import HEALTHS, health, report, set_by, words
from celery_limits.app.task_names import host_of, names_of
from celery_limits.cli.shape import (
    chain_data,
    change_data,
    explanation_data,
    finding_data,
    key_data,
    shown_data,
    stopped_data,
)  # fmt: skip
from celery_limits.store.changes import MOST_KEPT
from celery_limits.store.lookups import leases, running_of
from celery_limits.store.status import Party, Status
from celery_limits.store.steering import stopped_queues
from celery_limits.transport.lengths import queue_lengths

from .http import BadRequest, Request
from .index import KeyIndex, Row
from .names import Names
from .pictures import Bar, Spark, bar_of, order_graph, spark_of

__all__ = ["NotFound", "Pages"]

PAGE = 50
NAMED = 50
FEW = 8
ASK_SECONDS = 0.5
CONNECT_SECONDS = 2.0


class NotFound(LookupError):
    def __init__(self, text: str, kind: str = "NotFound", near: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.kind, self.near = kind, tuple(near)


class KeyView:
    """A key as a row of a table."""

    def __init__(self, status: Status, spark: Spark | None) -> None:
        self.status, self.spark = status, spark
        self.key, self.health, self.set_by = status.key, health(status), set_by(status)
        self.bar: Bar | None = bar_of(status)


class Pages:
    def __init__(self, limits: Limits, index: KeyIndex) -> None:
        self._limits, self._index = limits, index
        self._names = Names(limits.app, limits.store)

    # -- keys -----------------------------------------------------------------------------------------------------

    def _views(self, keys: list[str]) -> list[KeyView]:
        catalogue = self._limits.catalogue()
        statuses = (catalogue.complete(status) for status in self._limits.store.statuses(keys))
        return [KeyView(status, spark_of(self._index.samples(status.key))) for status in statuses]

    def overview(self, _: Request) -> dict[str, Any]:
        rows = self._index.look()
        worst = self._views([row.key for row in rows[:FEW] if row.health != "idle"])
        steered = [row.key for row in rows if row.health in HEALTHS[:2] or row.steered][:FEW]
        longest = max(rows, key=lambda row: row.oldest or 0.0, default=None)
        lapsed = sorted(name for name, left in leases(self._limits.store).items() if left <= 0)
        return {
            "sentence": _sentence(rows),
            "waiting": sum(row.waiting for row in rows),
            "held": sum(row.held for row in rows),
            "full": sum(row.health == "at capacity" for row in rows),
            "keys": len(rows),
            "longest": longest if longest and longest.oldest else None,
            "worst": worst,
            "steered": self._views(steered),
            "stopped": list(stopped_queues(self._limits.store).values()),
            "lapsed": lapsed,
            "workers": len(leases(self._limits.store)),
            "changes": self._limits.changes(6),
            "index": self._index,
        }

    def keys(self, request: Request) -> dict[str, Any]:
        query = {name: request.query.get(name, "").strip() for name in ("pattern", "template", "health")}
        cursor = request.query.get("cursor", "0")
        if not cursor.isdecimal():
            raise BadRequest(f"{cursor!r} is no cursor")
        first = int(cursor)
        rows = self._index.choose(query["pattern"], query["template"], query["health"])
        shown = self._views([row.key for row in rows[first : first + PAGE]])
        return {
            **query,
            "rows": shown,
            "first": first,
            "count": len(rows),
            "next": first + PAGE if first + PAGE < len(rows) else None,
            "previous": max(0, first - PAGE) if first else None,
            "templates": sorted({row.template for row in self._index.rows if row.template}),
            "healths": HEALTHS,
            "index": self._index,
        }

    def known(self, key: str, page: int = 0) -> Status:
        """The status of a key that exists: in use, steered or declared."""
        catalogue, store = self._limits.catalogue(), self._limits.store
        status = store.status(key, page)
        if not status.known and catalogue.limit_of(key) is None:
            near = catalogue.near(key, [row.key for row in self._index.look()][:10_000])
            raise NotFound(f"There is no key {key!r}: nobody uses it, and no task declares it.", "UnknownKey", near)
        return catalogue.complete(status)

    def _named(self, status: Status) -> Status:
        names = self._names.of((*status.holders, *status.waiters))

        def name(parties: tuple[Party, ...]) -> tuple[Party, ...]:
            return tuple(replace(party, task=names.get(party.ticket)) for party in parties)

        return replace(status, holders=name(status.holders), waiters=name(status.waiters))

    def key(self, key: str) -> dict[str, Any]:
        status = self._named(self.known(key, NAMED))
        pace = status.rate_now
        return {
            "view": KeyView(status, spark_of(self._index.samples(key), wide=True)),
            "status": status,
            "estimate": status.waiting / pace if pace and status.waiting and not status.paused else None,
            "changes": self._limits.changes(10, key),
            "index": self._index,
        }

    # -- tasks ----------------------------------------------------------------------------------------------------

    def task(self, task_id: str) -> dict[str, Any]:
        told = self._limits.explain(task_id)
        parties = [Party(s.ticket, task_id, s.state, s.worker, s.since) for s in told.tickets]
        holders = [holder for story in told.tickets for holder in story.holders]
        return {
            "task_id": task_id,
            "told": told,
            "names": self._names.of([*parties, *holders]),
            "changes": self._limits.changes(10, f"task {task_id}"),
        }

    # -- what is declared, who works ---------------------------------------------------------------------------------

    def declared(self, _: Request) -> dict[str, Any]:
        chains = sorted(self._limits.declared(), key=lambda chain: chain.task)
        problem = ""
        try:
            self._limits.check()
        except ValueError as error:
            problem = str(error)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        return {
            "chains": [
                {"task": chain.task, "limits": [(limit, repr(limit)) for limit in chain.limits]} for chain in chains
            ],
            "graph": order_graph(chains),
            "problem": problem,
            "shards": getattr(self._limits.settings, "shards", None),
        }

    def workers(self, _: Request) -> dict[str, Any]:
        return {"workers": self._workers(ASK_SECONDS)}

    def _workers(self, timeout: float) -> list[dict[str, Any]]:
        found = leases(self._limits.store)
        told = self._ask(sorted({host_of(name) for name in found if "@" in name}), timeout)
        workers = []
        for name, left in sorted(found.items()):
            count, tickets = running_of(self._limits.store, name)
            said = told.get(host_of(name)) or {}
            holding = {one["ticket"]: one for one in said.get("holding") or ()}
            workers.append(
                {
                    "worker": name,
                    "host": host_of(name),
                    "lease": round(left, 1),
                    "alive": left > 0,
                    "answers": bool(said),
                    "places": (said.get("pool") or {}).get("max-concurrency"),
                    "running": count,
                    "tasks": [
                        {"task_id": ticket.rpartition(".")[0], "task": (holding.get(ticket) or {}).get("task"),
                         "keys": (holding.get(ticket) or {}).get("keys") or []}
                        for ticket in tickets
                    ],
                }
            )  # fmt: skip
        return workers

    def _ask(self, hosts: list[str], timeout: float) -> dict[str, Any]:
        """What the workers say of themselves; those that do not answer in time are left out."""
        found: dict[str, Any] = {}
        control = self._limits.app.control
        with suppress(Exception):  # the broker is away, or can't broadcast
            for command in ("limits", "stats") if hosts else ():
                for reply in control.broadcast(
                    command, destination=hosts, timeout=timeout, limit=len(hosts), reply=True
                ):
                    for host, said in reply.items():
                        found.setdefault(host, {}).update(said if isinstance(said, dict) else {})
        return found

    def queues(self, _: Request) -> dict[str, Any]:
        rows = self._index.look()
        return {
            "queues": self._queues(),
            "lines": sum(row.waiting for row in rows),
            "longest": [row for row in rows if row.waiting][:FEW],
            "can_pause": self._limits.on_broker,
        }

    def _queues(self) -> list[dict[str, Any]]:
        app, store = self._limits.app, self._limits.store
        stopped, client = stopped_queues(store), store.client
        names = sorted({*app.amqp.queues, *stopped})
        lengths: dict[str, int] = {}
        with suppress(OperationalError), app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1, timeout=CONNECT_SECONDS)
            lengths = queue_lengths(connection, names)
        return [
            {
                "queue": name,
                "length": lengths.get(name),
                "granted": int(client.zcard(f"{store.prefix}ready:{name}")),
                "paused": None if name not in stopped else stopped_data(stopped[name]),
            }
            for name in names
        ]

    # -- whether all is well -------------------------------------------------------------------------------------------

    def audit(self, request: Request) -> dict[str, Any]:
        asked = request.query.get("run") == "1"
        return {
            "asked": asked,
            "findings": self._limits.audit() if asked else [],
            "changes": self._limits.changes(100),
            "index": self._index,
        }

    # -- the same for programs ----------------------------------------------------------------------------------

    def api(self, path: str, request: Request) -> Any:
        """What `--json` prints: of the command `list` at `keys`, and so on."""
        first, _, rest = path.partition("/")
        limits = self._limits
        if first == "keys" and rest:
            return shown_data(self._named(self.known(rest, 20)))
        if first == "tasks" and rest:
            return self._explained(rest)
        plain: dict[str, Any] = {
            "keys": lambda: [key_data(status) for status in limits.overview()],
            "declared": lambda: [chain_data(chain) for chain in sorted(limits.declared(), key=lambda one: one.task)],
            "workers": lambda: self._workers(ASK_SECONDS),
            "queues": self._queues,
            "audit": self._audited,
            "changes": lambda: [change_data(change) for change in limits.changes(_count(request))],
            "report": self._reported,
        }
        if rest or first not in plain:
            raise NotFound("There is no such page.")
        return plain[first]()

    def _explained(self, task_id: str) -> dict[str, Any]:
        told = self._limits.explain(task_id)
        parties = [Party(s.ticket, task_id, s.state, s.worker, s.since) for s in told.tickets]
        return explanation_data(told, names_of(self._limits.app, self._limits.store, parties, ASK_SECONDS))

    def _audited(self) -> dict[str, Any]:
        findings = self._limits.audit()
        return {"clean": not findings, "findings": [finding_data(finding) for finding in findings]}

    def _reported(self) -> dict[str, Any]:
        limits = self._limits
        stopped = stopped_queues(limits.store)
        alive = [name for name, left in leases(limits.store).items() if left > 0]
        return {"report": report(limits.overview(), len(alive), stopped.values()), "at": time.time()}


def _count(request: Request) -> int:
    text = request.query.get("count", "50")
    if not text.isdecimal() or not 1 <= int(text) <= MOST_KEPT:
        raise BadRequest(f"count={text!r}: a number from 1 to {MOST_KEPT} is needed")
    return int(text)


def _sentence(rows: list[Row]) -> str:
    longest = max(rows, key=lambda row: row.oldest or 0.0, default=None)
    counts = Counter(row.health for row in rows)
    return words(counts, longest.key, longest.oldest) if longest else words({}, "", None)
