"""The play of our own transport: what it publishes, fetches, acknowledges and gives back, held against the model.

Where the messages are is seen in the store: in the lists of the queue, with the workers that have fetched them, or in
line. That none is lost, doubled or changed on the way is judged after every call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from .actors import SECOND
from .model import Message, Worker
from .model_scene import Scene, judged
from .model_view import View
from .post import LISTS, QUEUE, Fetched, arrival_in, fields_in, is_unmoved, list_of, ticket_in

__all__ = ["Posting"]


class Posting(Scene):
    @judged
    def publish(self, message: Message) -> None:
        """Into its queue, or straight into the line of its first link; `again` is the same once more."""
        self.world.messages[message.ticket] = message
        before = self.view
        stamp = message.stamp(self.clock.now) if message.eta is None else ()
        lined = self.post.publish(message.queue, list_of(message.rank), message.body, *stamp)
        now = self.clock.now
        arrival = before.serial + 1 if stamp else 0
        message.arrivals.add(arrival)
        due = bool(stamp) and self.world.stands(before, message, now, arrival)
        assert lined == due, f"{message} in line: {lined}, but {due} was due"
        self.after("publish", ticket=message.ticket, arrival=arrival if lined else 0)
        if not lined:
            text = self.view.queued[list_of(message.rank)][0]
            assert ticket_in(text) == message.ticket, f"{text!r} is last in the queue, {message} was due"
            assert arrival_in(text) == arrival, f"{text!r} does not say that it arrived as {arrival}"

    @judged
    def fetch(
        self, worker: Worker, room: int, flags: str = "r", acked: Sequence[str] = (), mark: str = "m"
    ) -> list[Fetched] | None:
        before = self.view
        exact = not any(field.startswith("?") for field in acked)  # else what is dropped makes room for others
        fetched = self.post.fetch(worker.name, room, flags=flags, acked=acked, mark=mark)
        queued = frozenset(before.carried) if "s" in flags else frozenset()
        self.after("fetch", worker=worker.name, among=self._tickets(before, worker, acked), queued=queued)
        self._grants_are_given_back(before, worker, acked)
        assert (fetched is None) == (not worker.leased), f"{fetched} for {worker}"
        if fetched is None:
            return None
        if exact:
            due, got = self._due(before, room, flags), [ticket_in(one.text) for one in fetched]
            assert got == due, f"fetched {got}, in turn were {due}"
        mine = self.view.unacked.get(worker.name, {})
        for one in fetched:
            assert mine[one.field].text == one.text, f"{one.field} is {mine[one.field]}, but brought {one.text!r}"
            ticket = mine[one.field].ticket
            if ticket and exact:
                record = before.tickets[ticket]
                assert self.world.messages[ticket].is_payload(one.text, record), f"{one.text!r} for {record}"
        return fetched

    def _due(self, view: View, room: int, flags: str) -> list[str]:
        """What a fetch must bring: half of the room for granted tasks, half for the queue, the rest for whoever has
        more; but for what must wait, which stands in line now."""
        granted = deque(view.ready.get(QUEUE, ()))
        queued = deque(text for name in LISTS.values() for text in reversed(view.queued.get(name, ())))
        stood = self.view.tickets.keys() - view.tickets.keys()
        found: list[str] = []

        def take(most: int) -> None:
            while granted and len(found) < most and not ("b" in flags and self._is_young(view, granted[0])):
                found.append(granted.popleft())

        def pop(most: int) -> None:
            while queued and len(found) < most:
                text = queued.popleft()
                if "s" in flags:
                    self._stands_or_not(view, text, stood)
                if (ticket := ticket_in(text)) in stood and is_unmoved(text):
                    stood.remove(ticket)  # another copy of it does not
                else:
                    found.append(ticket)

        half = -(-room // 2)
        turns = ((take, half), (pop, room), (take, room)) if "r" in flags else ((pop, half), (take, room), (pop, room))
        for turn, most in turns:
            turn(most)
        assert not stood, f"{stood} stand in line, and were not in the queue"
        return found

    def _is_young(self, view: View, ticket: str) -> bool:
        """Granted so lately that a worker which has a place for it may still come: one that is busy leaves it."""
        record = view.tickets[ticket]
        return record.state == "granted" and self.clock.now - record.since < SECOND

    def _stands_or_not(self, view: View, text: bytes, stood: set[str]) -> None:
        """Sifting: into the line where others wait. Those who have come there in the same fetch may have made it so."""
        world = self.world
        message = world.messages[ticket_in(text)]
        key = message.specs[0].key
        may = message.eta is None and message.expires is None and key in view.lines
        due = may and is_unmoved(text) and world.stands(view, message, self.clock.now, arrival_in(text))
        lines = set(self.view.lines.get(key, ())) != set(view.lines.get(key, ()))
        assert (message.ticket in stood) == due or lines, f"{message} in line: {not due}, but {due} was due"

    @judged
    def acknowledge(self, worker: Worker, fields: Sequence[str]) -> None:
        before = self.view
        self.post.acknowledge(worker.name, fields)
        self.after("acknowledge", worker=worker.name, among=self._tickets(before, worker, fields))
        self._grants_are_given_back(before, worker, fields)
        assert not self._tickets(self.view, worker, fields), f"{fields} of {worker} are still there"

    def _grants_are_given_back(self, before: View, worker: Worker, fields: Sequence[str]) -> None:
        """A granted ticket whose message is dropped before it was admitted."""
        mine = before.unacked.get(worker.name, {})
        asked = fields_in([field for field in fields if field.startswith("?")])
        for ticket in (mine[field].ticket for field in asked if field in mine):
            record = before.tickets.get(ticket)
            if record and not record.kept and record.state in ("granted", "away"):
                assert ticket not in self.view.tickets, f"{ticket} was dropped, and is {self.view.tickets[ticket]}"

    @judged
    def requeue(self, worker: Worker, fields: Sequence[str], where: str) -> None:
        before = self.view
        self.post.requeue(worker.name, fields, where)
        not_begun = self._not_begun(before, worker, fields)
        self.after("requeue", worker=worker.name, among=frozenset(not_begun))
        for ticket in not_begun:
            record = self.view.tickets[ticket]
            assert record.state == "granted", f"{ticket} was handed over and given back, and is {record}"
        assert not self._tickets(self.view, worker, fields), f"{fields} of {worker} are still there"
        for field in fields:
            if (one := before.unacked.get(worker.name, {}).get(field)) is not None:
                texts = self.view.queued[one.list]
                mine = [i for i, text in enumerate(texts) if ticket_in(text) == ticket_in(one.text)]
                at_front = len(texts) - 1 - mine[-1] < len(fields)
                assert at_front if where == "front" else mine[0] < len(fields), f"{one} is not at the {where}: {texts}"

    def _not_begun(self, before: View, worker: Worker, fields: Sequence[str]) -> list[str]:
        """Those that were handed over to the worker, and that it gives back: no body runs any more."""
        mine, found = before.unacked.get(worker.name, {}), []
        for field in fields:
            record = before.tickets.get(mine[field].ticket) if field in mine else None
            if record and (record.state, record.worker, record.delivery) == ("running", worker.name, field):
                found.append(mine[field].ticket)
                for body in [b for b in self.world.bodies if b.admission == (found[-1], worker.name, record.fence)]:
                    self.world.bodies.remove(body)
                    self.world.ghosts.append(body.admission)
        return found

    @staticmethod
    def _tickets(view: View, worker: Worker, fields: Sequence[str]) -> frozenset[str]:
        mine = view.unacked.get(worker.name, {})
        return frozenset(ticket_in(mine[field].text) for field in fields_in(fields) if field in mine)
