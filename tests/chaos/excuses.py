"""What a fault explains, and nothing more: the only reasons for which the checker lets something pass.

Each is one that the guarantees name. A worker that alone was silent for longer than its lease (stopped, cut off, or
starved by the machine, as its own watch says) counts for nothing from the moment at which its lease may have lapsed.
A process that was ended takes with it what it had begun, or had not yet been able to acknowledge. A message that was
sent while nobody answered may have been sent twice.
"""

from __future__ import annotations

from tests.chaos.fleet import LEASE
from tests.chaos.history import Called, Felt, History, Run
from tests.chaos.ledger import Line

__all__ = [
    "ENDED", "REDIS", "SILENT", "WIRES",
    "begun_and_ended", "counts_for_nothing", "excuse_for_chord", "excuse_for_loss_of", "felt", "struck", "why_again",
]  # fmt: skip

BEATS = 3
"""Renewals in a lease. It lapses a lease after the last of them, and so at least two thirds of one after a worker falls
silent."""

RENEWED = 1.0
"""Seconds in which a worker that reaches Redis again has renewed it: it tries three times as often then."""

PROMPT = 3.0
"""Seconds in which a worker that is not kept from it has acknowledged what has ended, and in which a body that lives
gives a sign of it, on a busy machine."""

RECONNECT = 6.0
"""Seconds in which a worker whose connections were lost has others: kombu tries again after two seconds, and then after
four."""

RETURN = 2.0
"""Seconds in which a worker that comes back begins what it had been given before, and then finds that it is lost."""

ENDED = frozenset({"kill", "kill child", "kill all", "quit", "gone"})
"""What ends a worker in the middle of what it does. Of a pool without processes "kill child" does so too."""

SILENT = frozenset({"stop", "stop briefly", "cut off", "half-open", "half-open briefly", "starved"})
"""What a worker comes back from: it was taken for dead, and what it had was given to others. What is brief does so if
the worker could not renew its lease before, either."""

HELPLESS = frozenset({"stop", "stop briefly", "starved"})
"""And could not even end its bodies before its lease lapsed."""

RABBIT = frozenset({"rabbit killed", "rabbit restarted", "rabbit closed"})
"""RabbitMQ hands out again at once what was not acknowledged on a connection that has ended."""

REDIS = frozenset({"redis killed", "redis paused", "redis away", "failover"}) | RABBIT

WIRES = frozenset({"cut", "cut off", "half-open", "half-open briefly"})

GOING = frozenset({"term", "term twice", "deploy term", "clock"})
"""What a worker goes after in its own time: it ends what it runs. A second SIGTERM says nothing new to Celery."""


def felt(history: History, worker: str, since: float, until: float, kinds: frozenset[str]) -> list[Felt]:
    """Faults of these kinds that this worker felt in this time, oldest first; what its watch saw of them after them."""
    found = [
        fault for fault in history.by_worker[worker]
        if fault.kind in kinds and fault.at <= until and fault.until >= since
    ]  # fmt: skip
    return sorted(found, key=lambda fault: (fault.kind == "starved", fault.at))


def _lapses(history: History, fault: Felt) -> float:
    """When the lease of a worker that fell silent may have lapsed, at the earliest. It may not have been able to renew
    it before, either: then Redis was away, or its wire, until less than a renewal ago."""
    since = fault.at
    while before := [
        other for other in away_from(history, fault.worker, since - RENEWED, since)
        if other.at < since and other.kind not in RABBIT
    ]:  # fmt: skip
        since = min(other.at for other in before)
    return since + LEASE * (BEATS - 1) / BEATS - 0.2


def _silences(history: History, worker: str, kinds: frozenset[str], since: float, until: float) -> list[Felt]:
    """Those long enough for a lease to lapse in them that had lapsed it by `until`, and of which it came back, if at
    all, not long before `since`."""
    return [
        fault for fault in felt(history, worker, since - RETURN, until, kinds)
        if _lapses(history, fault) <= min(fault.until, until)
    ]  # fmt: skip


def counts_for_nothing(history: History, run: Run, at: float) -> str:
    """Why a body that runs at this moment holds no slot any more; empty if it must. (The exception of guarantee 1.)"""
    kinds = HELPLESS if history.modes.get(run.worker) == "terminate" else SILENT
    faults = [fault for fault in _silences(history, run.worker, kinds, run.at, at) if run.at <= fault.until + RETURN]
    return faults[0].kind if faults else ""


def struck(history: History, worker: str, by: float, kinds: frozenset[str] = ENDED | SILENT | GOING) -> str:
    """What this worker had suffered by then that costs a lease, or ends it."""
    faults = felt(history, worker, 0.0, by, kinds)
    lasted = [fault for fault in faults if fault.kind not in SILENT or _lapses(history, fault) <= min(fault.until, by)]
    return lasted[0].kind if lasted else ""


def away_from(history: History, worker: str, since: float, until: float) -> list[Felt]:
    """When this worker and Redis could not speak."""
    return [*felt(history, "", since, until, REDIS), *felt(history, worker, since, until, WIRES | SILENT)]


def _acknowledged(history: History, run: Run) -> float:
    """By when the end of a body, or its beginning, was acknowledged: promptly, when its parent had seen that it began,
    or when it could be again. In a worker that was told to go Celery's event loop has stopped, and what has ended may
    wait to be acknowledged for the last of its bodies."""
    seen = [line.at for line in history.calls[run.call].accepted if line.more["child"] == run.pid]
    by = max([run.last, *seen]) + PROMPT
    if felt(history, run.worker, 0.0, by, GOING):
        by = max(other.last for other in history.runs_in[run.worker]) + PROMPT
    told = RECONNECT + PROMPT
    since = run.at - RECONNECT  # it may have been on its way to the process, and the worker without a connection
    while later := [fault for fault in away_from(history, run.worker, since, by) if fault.until + told > by]:
        by = max(fault.until for fault in later) + told
    return by


def _ended(history: History, worker: str, pid: int, since: float, until: float) -> str:
    """What ended this process in this time, if anything did."""
    for fault in felt(history, worker, since, until, ENDED | {"losing"}):
        if fault.pid in (0, pid):
            return fault.kind
    return ""


def begun_and_ended(history: History, run: Run) -> str:
    """What ended the process of a body that gave its last sign of life shortly before, or before it was stopped."""
    by = run.last + PROMPT
    for fault in felt(history, run.worker, run.at, by, HELPLESS):
        by = max(by, fault.until + PROMPT)
    if run.asked and not run.torn:  # it publishes its retry, and says nothing until that is done
        by = max([by, *(fault.until for fault in away_from(history, run.worker, run.asked, by))])
    return _ended(history, run.worker, run.pid, run.at, by)


def _ended_as_it_began(history: History, accepted: Line) -> str:
    child = accepted.more["child"]
    return _ended(history, accepted.more["worker"], child, accepted.at - 1, accepted.at + PROMPT)


def excuse_for_loss_of(history: History, call: Called) -> str:
    """Acknowledged before it began: one whose process was ended has had its only chance."""
    last = max(call.runs, key=lambda run: run.retries, default=None)
    if last is not None and last.torn != "Retry" and (what := begun_and_ended(history, last)):
        return f"begun, and then: {what}"
    since = last.last if last is not None else 0.0
    for line in call.accepted:
        if line.at >= since and (what := _ended_as_it_began(history, line)):
            return f"about to begin, and then: {what}"
    return ""


def excuse_for_chord(history: History, call: Called) -> str:
    """Of those whose results it waits for, the last to end puts a claim on it before it publishes it. That claim is
    Celery's, and outlives a process that is ended then: the message comes again and runs, finds the chord claimed, and
    leaves it at that."""
    members = [history.calls[name] for name in call.spec["members"] or ()]
    if call.runs or not members or not all(member.finals for member in members):
        return ""
    complete = max(min(run.last for run in member.finals) for member in members)
    for run in [run for member in members for run in member.finals if run.last >= complete]:
        if what := _ended(history, run.worker, run.pid, run.at, _acknowledged(history, run)):
            return f"a chord that was claimed by a process, and then: {what}"
    return ""


# -- a message that runs again ---------------------------------------------------------------------------------------


def why_again(history: History, call: Called, last: Run) -> str:
    for run in call.runs:
        if run is not last and run.at <= last.at and (reason := _given_to_another(history, run, last.at)):
            return reason
    if faults := _silences(history, last.worker, SILENT, last.at, last.at):
        return f"{faults[0].kind}, with the message in its hands, while another ran it"
    return _sent_twice(history, call, last)


def _given_to_another(history: History, run: Run, by: float) -> str:
    told = _acknowledged(history, run)
    if what := _ended(history, run.worker, run.pid, run.at, min(told, by)):
        return what
    if faults := _silences(history, run.worker, SILENT, run.at, min(told, by)):
        return faults[0].kind
    if faults := felt(history, "", run.at - PROMPT, min(told, by), RABBIT):  # it may have waited for a thread since
        return f"{faults[0].kind}, before it was acknowledged"
    told_to_go = felt(history, run.worker, 0.0, min(told, by), GOING)
    if told_to_go and away_from(history, run.worker, run.at, min(told, by)):
        return "told to go while it could not acknowledge"
    return ""


def _sent_twice(history: History, call: Called, last: Run) -> str:
    """Nobody can know whether a message that was not answered has arrived; so it is sent again."""
    published = call.published.at if call.published else last.at
    if felt(history, "", call.meant.at, published, REDIS):
        return "published while Redis was away"
    for run in call.runs:
        if run.torn == "Retry" and away_from(history, run.worker, run.asked, run.last):
            return "retried while Redis was away"
    return ""
