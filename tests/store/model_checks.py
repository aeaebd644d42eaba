"""What must be true after every step, whatever the step was: the guarantees, over two views of the store.
`judge` compares the view before a call with the one after it. Each check is named after what it holds the store to.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from .actors import SECOND
from .model import POLICY, Message, Spec, World
from .model_fair import groups_are_counted, spec_at
from .model_trace import events_in
from .model_view import HOLDING, Record, View
from .post import bare, ticket_in

__all__ = ["Op", "judge", "swept_clean"]

ROUNDING = 1.0
"""Microseconds that a double may be off, today, after a few additions."""


@dataclass
class Op:
    """A call that was made: what it was about, and when the store was told it happened."""

    verb: str
    now: int
    ticket: str = ""
    task: str = ""
    worker: str = ""
    among: frozenset[str] = frozenset()
    """The tickets of the deliveries that it was about."""
    handed: str = ""
    """The ticket that a release has handed over to its worker."""
    queued: frozenset[str] = frozenset()
    """The tickets that it may have put into line, instead of fetching them."""
    untied: frozenset[str] = frozenset()
    """The tickets that gave up their slots, since they and others waited for each other."""
    arrival: int = 0
    ahead: int = 0
    """How far the time of the namespace is ahead of the server's."""
    complete: bool = False  # a sweep that left nothing for another


DROPPING = frozenset({"acknowledge", "fetch", "release"})
WAKING = frozenset({"admit", "cancel", "leave", "sweep", "resize", "resume", "refreshed"}) | DROPPING
RECOVERING = frozenset({"leave", "sweep"})
DISPATCHING = frozenset({"fetch", "claim", "settle"})

MOVES: dict[tuple[str, str], frozenset[str]] = {
    ("", "running"): frozenset({"admit"}),
    ("", "waiting"): frozenset({"admit", "publish", "fetch"}),
    ("", "granted"): frozenset({"admit"}),  # parked, and its share has made it next at a rate that is due
    ("running", "running"): frozenset({"admit"}),
    ("running", ""): frozenset({"release"}),
    ("running", "finished"): frozenset({"release"}),
    ("running", "away"): frozenset({"release", "leave", "sweep"}),
    ("running", "granted"): RECOVERING | {"requeue"},
    ("running", "waiting"): RECOVERING,
    ("running", "ended"): RECOVERING,
    ("waiting", "waiting"): WAKING,
    ("waiting", "granted"): WAKING,
    ("waiting", "running"): frozenset({"release"}),
    ("waiting", "ended"): WAKING,
    ("granted", "granted"): DISPATCHING,
    ("granted", "running"): frozenset({"admit"}),
    ("granted", "away"): frozenset({"sweep"}),
    ("granted", "ended"): frozenset({"cancel"}),
    ("granted", ""): frozenset({"cancel", "admit"}) | DROPPING,
    ("away", "away"): DISPATCHING,
    ("away", "running"): frozenset({"admit"}),
    ("away", "waiting"): frozenset({"admit"}),
    ("away", "granted"): frozenset({"admit"}),
    ("away", "ended"): frozenset({"cancel"}),
    ("away", ""): frozenset({"cancel", "admit", "sweep"}) | DROPPING,
    ("ended", "ended"): frozenset({"claim"}),
    ("ended", ""): frozenset({"settle"}),
    ("finished", ""): frozenset({"sweep"}),
}
"""The only ways for a ticket to change, and the verbs that may change it so; "" is a ticket the store does not know."""

OWN_AFFAIR = frozenset({("running", ""), ("running", "finished"), ("granted", "running"), ("away", "running")})
OWN_AFFAIR |= {("", "running"), ("", "waiting"), ("away", "waiting"), ("running", "running"), ("", "granted")}
"""Moves that only happen to the ticket that the call names."""


def judge(world: World, op: Op, pre: View, post: View) -> None:
    slots_are_those_of_the_tickets(world, post)
    changed = [t for t in pre.tickets.keys() | post.tickets.keys() if pre.tickets.get(t) != post.tickets.get(t)]
    for ticket in changed:
        moves_are_legal(world, op, ticket, pre, post)
    for ticket in changed:
        remember(op, world.messages[ticket], pre.tickets.get(ticket), post.tickets.get(ticket), pre)
        deadline_is_rung(world.messages[ticket], post.tickets.get(ticket), post)
    rates_are_exact(world, op, pre, post, changed)
    note_progress(world, post, changed)
    never_over(world, op, pre, post)
    in_turn(world, op, post)
    for ticket in changed:
        discarded_only_when_full(world, op, ticket, pre, post)
    no_room_beside_a_waiter(world, op.now, post, swept=op.complete)
    bodies_are_what_runs(world, post)
    everything_is_somewhere(world, post)
    copies_are_accounted_for(world, op, pre, post)
    cancelled_is_remembered(world, op, post)


def slots_are_those_of_the_tickets(world: World, view: View) -> None:
    """H(k) is exactly what running, granted and waiting tickets have taken on their way; W(k) exactly who waits."""
    held: dict[str, dict[str, int]] = defaultdict(dict)
    lines: dict[str, list[str]] = defaultdict(list)
    for ticket, record in view.tickets.items():
        specs = world.messages[ticket].specs
        if record.state in ("running", "granted"):
            assert record.passed == len(specs), f"{ticket} is {record.state} past {record.passed} links of {len(specs)}"
        if record.state in HOLDING:
            for spec in specs[: record.passed]:
                if spec.kind != "rate":
                    held[spec.key][ticket] = spec.weight
        if record.state == "waiting":
            lines[specs[record.passed].key].append(ticket)
    assert held == view.holders, f"holders {view.holders} are not what the tickets claim: {dict(held)}"
    for key in held.keys() | view.notes.keys():
        beyond, noted = sum(held[key].values()) - len(held[key]), int(view.notes.get(key, {}).get("extra", 0))
        assert beyond == noted, f"holders of {key} use {beyond} beyond a slot each, and {noted} is noted"
    standing = {key: sorted(line) for key, line in view.lines.items()}
    claimed = {key: sorted(line) for key, line in lines.items()}
    assert standing == claimed, f"in line {standing}, waiting {claimed}"
    groups_are_counted(world, view)


def moves_are_legal(world: World, op: Op, ticket: str, pre: View, post: View) -> None:
    old, new = pre.tickets.get(ticket), post.tickets.get(ticket)
    move = (old.state if old else "", new.state if new else "")
    what = f"{op.verb} took {ticket} from {old} to {new}"
    assert op.verb in MOVES.get(move, ()), what
    if move in OWN_AFFAIR or (op.verb in ("release", "admit") and old and old.state != "waiting"):
        assert ticket == op.ticket or ticket in op.among | op.queued, what
    if op.verb in DROPPING and not new:
        assert ticket in op.among or ticket == op.ticket, what
    if move == ("waiting", "running"):
        assert ticket == op.handed, f"{what}, and handed it to nobody"
    if op.verb == "requeue":
        assert ticket in op.among, f"{what}, which was not given back"
    message = world.messages[ticket]
    if old and move == ("running", ""):
        copies = old.sends > 1 or (old.kept == "spare" and not message.queue)
        assert not copies, f"{what}, and another copy may come"
    if old and old.state == "running" and op.verb in RECOVERING:
        worker = world.workers[old.worker]
        assert not worker.leased, f"{what}, though its worker lives"
        assert op.verb == "sweep" or worker.name == op.worker, what
    if op.verb == "sweep" and (not new or move == ("granted", "away")):
        assert message.deadline is not None, f"{what}, which has no end"
        assert message.deadline <= op.now, f"{what}, too soon"
    if old and new and move == ("waiting", "waiting"):
        assert new.passed > old.passed or ticket in op.untied, f"{what}, which is not onwards"
    if new and new.state == "ended" != move[0]:
        ended_for_a_reason(message, new, op, what, post)


def ended_for_a_reason(message: Message, new: Record, op: Op, what: str, post: View) -> None:
    if new.reason == "expired":
        assert message.expires is not None, f"{what}, but it never expires"
        assert message.expires <= op.now - op.ahead, f"{what}, too soon"
    elif new.reason == "revoked":
        assert message.task in post.cancelled, f"{what}, but it was never cancelled"
    else:
        assert new.reason == "discarded", what


def remember(op: Op, message: Message, old: Record | None, new: Record | None, pre: View) -> None:
    """Keeps place and deadline of a ticket for as long as the store knows it."""
    if new is None:
        return message.forget()
    if old is None:
        came = new.arrival
        right = came == op.arrival if op.arrival else came > pre.serial or came in message.arrivals
        assert right, f"{message} arrives as {came}, {op.arrival} was due, or more than {pre.serial}"
        message.place = (message.rank, came)
    assert message.place == (message.rank, new.arrival), f"{message} had the place {message.place}, has {new}"
    was, state = old.state if old else "", new.state
    moved = op.verb in ("settle", "fetch")
    if state == "granted" and (was != "granted" or moved):
        message.deadline = op.now + round(POLICY.grant_timeout * SECOND)
    elif state == "finished":
        message.deadline = op.now + round(POLICY.revoke_ttl * SECOND)
    elif state == "away" and (was != "away" or moved):
        patience = POLICY.place_ttl
        if old and was == "running" and op.verb in RECOVERING and not _comes_again(old, pre):
            patience = 2 * POLICY.lease  # acknowledged early: only a copy under way can bring it back
        expiry = math.inf if message.expires is None else message.expires + op.ahead
        message.deadline = None if new.kept else min(op.now + round(patience * SECOND), max(expiry, op.now + 1))
    elif state in ("running", "waiting"):
        message.deadline = None
    return None


def deadline_is_rung(message: Message, new: Record | None, post: View) -> None:
    """Whatever has its time has an alarm for its end, and no earlier one."""
    if new and new.state in ("granted", "away", "finished") and message.deadline is not None:
        what = "grant" if new.state == "granted" else "forget"
        rings = post.alarms.get(f"{what}|{message.ticket}", math.inf)
        assert abs(rings - message.deadline) <= ROUNDING, f"{message} is {new}, until {message.deadline}, not {rings}"


def _comes_again(old: Record, pre: View) -> bool:
    """One that was handed over may be acknowledged early or late, which nobody has asked yet: its delivery tells."""
    return old.late or old.delivery in pre.unacked.get(old.worker, ())


def rates_are_exact(world: World, op: Op, pre: View, post: View, changed: list[str]) -> None:
    """GCRA: each pass conforms when it happens, is paid once, and nothing else moves the theoretical arrival time."""
    paid: dict[str, list[Spec]] = defaultdict(list)
    for ticket in changed:
        message, record = world.messages[ticket], post.tickets.get(ticket)
        if record:
            for spec in message.specs[message.reached : record.reached]:
                if spec.kind == "rate":
                    paid[spec.key].append(spec)
    for key, specs in paid.items():
        assert key not in world.paused, f"{key} is paused, but was passed"
        for spec in sorted(specs, key=lambda s: math.prod(world.rate(s))):
            due = world.due(spec, op.now)
            assert due <= op.now + ROUNDING, f"passed {key} {(due - op.now) / SECOND:.6f} s too soon"
            interval, _ = world.rate(spec)
            world.arrival_times[key] = max(world.arrival_times.get(key, 0.0), op.now) + interval * spec.weight
            _holds_over_any_window(world, key, op.now, spec)
    for key in world.arrival_times.keys() | post.rates.keys():
        model, store = (max(tats.get(key, 0.0), op.now) for tats in (world.arrival_times, post.rates))
        assert abs(model - store) <= ROUNDING, f"{key}: tokens paid until {store}, but {model} were due"


def _holds_over_any_window(world: World, key: str, now: int, spec: Spec) -> None:
    """Independently of any algorithm: no window lets more pass than burst + rate * its length."""
    passes = world.passes.setdefault(key, [])
    passes.append((now, spec.weight))
    interval, burst = world.rate(spec)
    most = max(burst, *(s.burst for m in world.messages.values() for s in m.specs if s.key == key))
    total = 0
    for when, cost in reversed(passes):
        total += cost
        allowed = most + (now - when + ROUNDING) / interval
        assert total <= allowed, f"{key}: {total} in {(now - when) / SECOND:.6f} s, allowed are {allowed:.3f}"


def note_progress(world: World, post: View, changed: list[str]) -> None:
    for ticket in changed:
        message, record = world.messages[ticket], post.tickets.get(ticket)
        if record:
            assert record.reached >= max(message.reached, record.passed), f"{ticket} forgot how far it had come"
            message.reached = record.reached


def _entrants(world: World, op: Op, pre: View, post: View) -> dict[str, list[tuple[Message, Spec]]]:
    """Who has a slot that it did not have before. One that was recovered or untied gave all up, and enters anew."""
    found: dict[str, list[tuple[Message, Spec]]] = defaultdict(list)
    for ticket, new in post.tickets.items():
        old = pre.tickets.get(ticket)
        if new is old or new.state not in HOLDING:
            continue
        recovered = op.verb in RECOVERING and old is not None and old.state == "running" != new.state
        anew = old is None or old.state not in HOLDING or recovered or ticket in op.untied
        message = world.messages[ticket]
        for spec in message.specs[0 if old is None or anew else old.passed : new.passed]:
            if spec.kind != "rate":
                found[spec.key].append((message, spec))
    return found


def never_over(world: World, op: Op, pre: View, post: View) -> None:
    """A slot is only ever taken within the size in force for who takes it. That a limit was lowered evicts nobody."""
    for key, entrants in _entrants(world, op, pre, post).items():
        assert key not in world.paused, f"{key} is paused, but {op.verb} let in {entrants}"
        used = post.used(key) - sum(spec.weight for _, spec in entrants)
        # Several may have entered in one script; if any order is within the limits, that of their sizes is.
        forgotten = world.floating[key].forgotten if key in world.floating else 0
        for message, spec in sorted(entrants, key=lambda entrant: world.size(entrant[1])):
            used, size = used + spec.weight, max(world.size(spec), forgotten)
            assert used <= size, f"{op.verb} let {message} into {key}: {used} of {size}"


def in_turn(world: World, op: Op, post: View) -> None:
    """Whoever enters passes nobody whose turn it is, at the very moment; and the store has noted who was served."""
    world.order.follow(world, op.verb, op.now, events_in(post.trace))
    world.order.agrees(post)


def discarded_only_when_full(world: World, op: Op, ticket: str, pre: View, post: View) -> None:
    """A waiter that moved on to a link where it does not wait: there must be no room for it there."""
    old, new = pre.tickets.get(ticket), post.tickets.get(ticket)
    if not (old and new and new.reason == "discarded" != old.reason) or op.verb in RECOVERING:
        return  # a recovery does many things in one script: what was full may have been freed after
    message = world.messages[ticket]
    spec = message.specs[new.reached]
    assert spec.longest is not None, f"{ticket} was discarded at {spec.key}, where it may wait"
    assert message.place is not None
    room = world.may_enter(post, ticket, message.place, spec, op.now)
    assert not room, f"{op.verb} discarded {ticket} at {spec.key}, which has room"


def no_room_beside_a_waiter(world: World, now: int, view: View, *, swept: bool) -> None:
    """Guarantee 3. What only time brings, a rate's next token, has its alarm set no later than it is due."""
    for key in view.lines:
        if key in world.paused or view.alarms.get(f"wake|{key}", math.inf) <= now or _follows(world, view, key):
            continue
        for waiter in world.standing(view, key):
            message, spec = waiter.message, waiter.spec
            if world.barred(view, message.ticket, waiter.place, spec):
                continue
            if spec.kind == "rate":
                due = max(world.due(spec, now), now)
                rings = view.alarms.get(f"rate|{key}", math.inf)
                assert rings <= due + 1 + ROUNDING, f"{message} is woken at {rings}, but due at {due}"
            if spec.kind != "rate" or swept:
                assert not world.fits(view, spec, now), f"{message} waits at {key} beside room"


def _follows(world: World, view: View, key: str) -> bool:
    """The places of the workers have changed, and a sweep that is due at once walks the keys whose size they are."""
    if not any(spec_at(world.messages[ticket], key).kind == "workers" for ticket in view.lines[key]):
        return False
    assert key in view.followers, f"nobody would know that {key} follows the workers"
    return any(alarm.startswith(("places|", "walk|")) for alarm in view.alarms)


def bodies_are_what_runs(world: World, view: View) -> None:
    """No body loses its slots while its worker lives, no slot is held for a body that there is not, none runs twice."""
    running = {(ticket, r.worker, r.fence) for ticket, r in view.tickets.items() if r.state == "running"}
    counting = [body for body in world.bodies if body.counts]
    lost = [body.admission for body in counting if body.admission not in running]
    assert not lost, f"{lost} run on living workers, but the store knows nothing of it"
    tickets = [body.message.ticket for body in counting]
    assert len(tickets) == len(set(tickets)), f"a ticket runs twice: {tickets}"
    known = {body.admission for body in world.bodies}
    for ticket, worker, fence in running:
        assert (ticket, worker, fence) in known, f"{ticket} is said to run on {worker}, but no body does"
        assert world.workers[worker].leased or worker in view.dead, f"{ticket} runs on {worker}, which is buried"


def everything_is_somewhere(world: World, view: View) -> None:
    """Guarantee 5: a message that has not ended is with the broker, with a body, or whole in the store."""
    listed = [t for queue in view.ready.values() for t in queue]
    assert len(listed) == len(set(listed)), f"a message is in its queue twice: {view.ready}"
    for ticket, record in view.tickets.items():
        message = world.messages[ticket]
        if record.kept:
            text = view.messages.get(ticket, b"")
            assert bare(text) == message.bare, f"{ticket} is kept as {text!r}"
        else:
            assert ticket not in view.messages, f"{ticket} keeps a message that nobody counts on"
        in_store = bool(record.kept) and record.state != "running"
        on_offer = in_store and record.state in ("granted", "away")
        assert (ticket in listed) == bool(on_offer and message.queue), f"{ticket}, {record}: in its queue?"
        outbound = (on_offer and not message.queue) or record.state == "ended"
        assert (ticket in view.outbox) == outbound, f"{ticket}, {record}: in the outbox?"
    for message in world.messages.values():
        if not message.fate and message.ticket not in view.messages:
            assert world.copies(message, view), f"{message} is nowhere: {view.tickets.get(message.ticket)}"


def copies_are_accounted_for(world: World, op: Op, pre: View, post: View) -> None:
    """Our transport makes no copies of its own, and drops none but those that the call was to be done with."""
    for ticket in pre.carried.keys() | post.carried.keys():
        before, after = pre.copies(ticket) + (op.verb == "publish" and ticket == op.ticket), post.copies(ticket)
        assert after <= before, f"{op.verb} made {after} copies of {ticket} out of {before}"
        done_with = ticket in op.among or ticket == op.ticket or op.verb == "settle"
        assert after == before or done_with, f"{op.verb} lost a copy of {ticket}"
    if op.verb in RECOVERING:
        for name, texts in pre.queued.items():
            assert post.queued[name][: len(texts)] == texts, (
                f"what {op.verb} gave back is not at the front: {post.queued}"
            )
    for texts in (*post.queued.values(), [d.text for held in post.unacked.values() for d in held.values()]):
        for text in texts:
            assert bare(text) == world.messages[ticket_in(text)].bare, f"what was published has become {text!r}"
    buried = post.unacked.keys() - {name for name, worker in world.workers.items() if worker.leased}
    gone = [name for name in buried if f"reclaim|{name}" not in post.alarms]
    assert not gone, f"what {gone} had fetched stays with them, and they are buried"


def cancelled_is_remembered(world: World, op: Op, view: View) -> None:
    for task, until in world.remembered.items():
        assert task in view.cancelled or until <= op.now, f"that {task} was cancelled is forgotten too soon"
    assert view.cancelled <= world.remembered.keys()


def swept_clean(world: World, now: int, view: View) -> None:
    """After a sweep that says nothing is left, nothing is that time had made due."""
    for ticket, record in view.tickets.items():
        message = world.messages[ticket]
        if record.state == "waiting" and message.expires is not None:
            assert message.expires > world.clock.server, f"{message} has expired and still waits"
        if record.state in ("granted", "away", "finished") and message.deadline is not None:
            assert message.deadline > now, f"{message}: {record.state} beyond its time"
    assert not view.dead, f"{view.dead} are not buried"
    assert not any(alarm.startswith(("places|", "walk|")) for alarm in view.alarms), (
        "the places of workers have changed"
    )
    overdue = {task for task in view.cancelled if world.remembered[task] <= now}
    assert not overdue, f"{overdue} are remembered for ever"
