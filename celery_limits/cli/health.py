"""The commands that ask whether all is well: `audit` of the store, what was set `aside`, `check` before a deploy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import click
from celery.bin.base import CeleryOption
from celery.exceptions import ImproperlyConfigured
from celery.utils.imports import symbol_by_name

from celery_limits.app.handle import Limits
from celery_limits.declare.limits import FloatingConcurrency
from celery_limits.errors import LimitError
from celery_limits.printable import printable
from celery_limits.store import StoreError
from celery_limits.store.aside import delete_aside, read_aside, requeue_aside

from .base import Failure, Session, limits_command
from .shape import finding_data

__all__ = ["aside", "audit", "check"]


@limits_command("audit")
@click.option("--repair", is_flag=True, cls=CeleryOption, help="Mend what is found.")
def audit(session: Session, repair: bool) -> int:
    """Recompute everything in the store, and name each discrepancy.

    Exit code 1 if there is any, or if --repair could not mend all.
    """
    limits = session.limits
    findings = limits.audit(repair=repair)
    left = limits.audit() if repair and findings else findings
    data = {"clean": not left, "findings": [finding_data(finding) for finding in findings]}
    lines = [printable(finding) for finding in findings]
    if left and not repair:
        lines.append(f"{len(left)} found; run with --repair to repair them")
    elif left:
        lines += [f"still there: {printable(finding)}" for finding in left]
    session.say(data, "\n".join(lines) or "Nothing is wrong.")
    return 1 if left else 0


@limits_command("aside")
@click.option("--requeue", metavar="NAME", cls=CeleryOption, help="Put this message back at the end of its queue.")
@click.option("--delete", metavar="NAME", cls=CeleryOption, help="Delete this entry for good.")
def aside(session: Session, requeue: str | None, delete: str | None) -> None:
    """Show the messages that were set aside, since no task could be made of them.

    Workers set a message aside after it has failed several times while it was read. It is kept whole.
    """
    store = session.limits.store
    if requeue and delete:
        raise Failure("--requeue and --delete exclude each other", "Usage")
    if delete:
        if not delete_aside(store, delete):
            raise Failure(f"nothing is set aside as {delete!r}", "UnknownName")
        return session.say({"deleted": delete}, f"{delete}: deleted")
    if requeue:
        found = requeue_aside(store, requeue)
        if found is None:
            raise Failure(f"nothing is set aside as {requeue!r}", "UnknownName")
        if not found.queue:
            raise Failure(f"{requeue!r} is a ticket's record, which has no queue to go back to", "NoQueue")
        return session.say({"requeued": requeue, "queue": found.queue}, f"{requeue}: back in {found.queue!r}")
    entries = read_aside(store)
    data = [
        {
            "name": entry.name,
            "queue": entry.queue,
            "reason": entry.why,
            "at": entry.at,
            "message": entry.message.decode("utf-8", "backslashreplace"),
        }
        for entry in entries
    ]
    lines = [f"{entry.name}  from {entry.queue or '-'}  {entry.why}" for entry in entries]
    return session.say({"aside": data}, "\n".join(map(printable, lines)) or "Nothing is set aside.")


class Result(NamedTuple):
    """One thing that was checked. `problem` says what to do; with `severe` false it is only a warning."""

    name: str
    detail: str
    problem: str | None = None
    severe: bool = True


@limits_command("check")
@click.option("--offline", is_flag=True, cls=CeleryOption, help="Leave out the store, where it can't be reached.")
def check(session: Session, offline: bool) -> int:
    """Check settings, declared chains, deadlocks and the store, for CI and before a deploy.

    Exit code 1 if workers would not start or would not work, with what to do about it.
    """
    results = list(_results(session.app, offline))
    failed = any(result.problem and result.severe for result in results)
    data = {
        "ok": not failed,
        "checks": [
            {"name": r.name, "ok": not r.problem, "severity": _severity(r), "detail": r.detail, "problem": r.problem}
            for r in results
        ],
    }  # fmt: skip
    session.say(data, "\n".join(_lines(results)))
    return 1 if failed else 0


def _severity(result: Result) -> str:
    if result.problem is None:
        return "ok"
    return "error" if result.severe else "warning"


def _lines(results: Iterable[Result]) -> Iterator[str]:
    """One for each check; what several of them met is said once."""
    said: set[str] = set()
    for result in results:
        if result.problem is None:
            yield f"ok       {result.name}: {result.detail}"
            continue
        problem = "as above" if result.problem in said else result.problem
        said.add(result.problem)
        yield f"{'FAILED' if result.severe else 'warning':<8} {result.name}: {problem}"


def _results(app: Any, offline: bool) -> Iterator[Result]:
    limits = Limits(app)
    yield _tried("settings", lambda: _settings(limits))
    yield _tried("tasks", lambda: _load(app, limits))
    yield _tried("deadlock", lambda: _deadlock(limits))
    yield _tried("refresh functions", lambda: _refreshes(limits))
    if not offline:
        yield _tried("store", lambda: _reach(limits))
        yield from _store_settings(limits)


def _tried(name: str, attempt: Callable[[], str]) -> Result:
    try:
        return Result(name, attempt())
    except (LimitError, ImproperlyConfigured) as error:
        return Result(name, "", str(error))
    except Exception as error:  # a module of the app that can't be imported, say
        return Result(name, "", f"{type(error).__name__}: {error}")


def _settings(limits: Limits) -> str:
    settings = limits.settings
    return f"namespace {settings.namespace!r}, lease {settings.lease:g} s, store {limits.url}"


def _load(app: Any, limits: Limits) -> str:
    app.loader.import_default_modules()
    app.finalize()
    return f"{len(limits.declared())} of {len(app.tasks)} have limits"


def _deadlock(limits: Limits) -> str:
    limits.check()
    return "the declared chains can't wait for each other"


def _refreshes(limits: Limits) -> str:
    floating = {
        limit.refresh for chain in limits.declared() for limit in chain.limits if isinstance(limit, FloatingConcurrency)
    }
    for name in sorted(map(str, floating)):
        try:
            function = symbol_by_name(name)
        except (ImportError, AttributeError) as error:
            raise LimitError(f"{name} can't be imported ({error}); a worker needs it to refresh its limit") from None
        if not callable(function):
            raise LimitError(f"{name} is {function!r}, not a function")
    return f"all {len(floating)} can be imported" if floating else "no floating limits"


def _reach(limits: Limits) -> str:
    try:
        limits.store.check_version()
        limits.store.status("", 0)
    except StoreError as error:
        raise LimitError(f"{limits.url}: {error} Start it, or set limits_store_url to where it is.") from None
    return f"{limits.url} answers"


def _store_settings(limits: Limits) -> Iterator[Result]:
    """What a Redis must not do with the state of limits. One that does not tell (an ACL) is taken as it is."""
    try:
        client: Any = limits.store.client
        said = client.info("memory")
    except Exception:
        return
    yield from _persistence(client)
    yield from _eviction(said)


def _eviction(said: Any) -> Iterator[Result]:
    """A managed Redis often has a policy from the start; that of ElastiCache is volatile-lru."""
    policy = said.get("maxmemory_policy", "noeviction")
    if not said.get("maxmemory") or policy == "noeviction":
        return
    if str(policy).startswith("volatile-"):
        yield Result(
            "eviction",
            policy,
            f"this Redis evicts keys that expire when it is full (maxmemory-policy {policy}). Tasks that wait do not "
            "expire, but task results do; set maxmemory-policy noeviction, in a parameter group where it is "
            "managed",
            severe=False,
        )
        return
    yield Result(
        "eviction",
        policy,
        f"this Redis evicts keys when it is full (maxmemory-policy {policy}), and with them tasks that wait; "
        "set maxmemory-policy noeviction, in a parameter group where it is managed",
    )


def _persistence(client: Any) -> Iterator[Result]:
    try:
        appends = client.info("persistence").get("aof_enabled")
        snapshots = client.config_get("save").get("save")
    except Exception:
        return
    if not appends and snapshots == "":
        yield Result(
            "persistence",
            "none",
            "this Redis writes nothing to disk, so a restart loses the tasks that wait in it; set appendonly yes",
            severe=False,
        )
