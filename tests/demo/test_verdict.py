"""The demo's verdict: it must call a broken promise broken, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.ledger import Entry, Ledger, runs_of, steps_of
from demo.plot import draw
from demo.verdict import Finding, judge

SIZES = {"tenant:acme": 2, "tenant:birch": 2, "warehouse": 3}
ONE, TWO = 101, 102
"""Process ids of the workers."""


class Story:
    """Writes the entries of a ledger, a tenth of a second apart."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def tell(self, what: str, task_id: str = "", *, worker: int = ONE, key: str = "", size: int = 0) -> Story:
        at = 1000 + 0.1 * len(self.entries)
        self.entries.append(Entry(what, at, task_id, task_id.partition("-")[0], worker, key, size))
        return self

    def send(self, *task_ids: str) -> Story:
        for task_id in task_ids:
            self.tell("sent", task_id)
        return self

    def run(self, *task_ids: str) -> Story:
        """All of them at once."""
        for what in ("start", "end"):
            for task_id in task_ids:
                self.tell(what, task_id)
        return self

    def judge(self, *, rate: float = 100, audit: tuple[str, ...] = ()) -> dict[str, Finding]:
        return {finding.promise: finding for finding in judge(self.entries, SIZES, rate, 1, audit)}


def broken(findings: dict[str, Finding]) -> list[str]:
    return [promise for promise, finding in findings.items() if not finding.kept]


def test_all_is_well_when_it_is() -> None:
    findings = Story().send("acme-1", "acme-2", "birch-1").run("acme-1", "acme-2", "birch-1").judge()
    assert broken(findings) == []
    assert findings["tenant:acme is never over"].figures == "peak 2 of 2"
    assert findings["warehouse is never over"].figures == "peak 3 of 3"
    assert findings["carrier-api keeps its rate"].figures.endswith(" at once")
    assert findings["nothing is lost"].figures == "3 of 3 orders shipped"


FIRST = "every tenant's first order gets a free dock"


def test_a_first_order_that_waits_while_every_dock_goes_to_others_is_a_failure() -> None:
    flood = [f"acme-{number}" for number in range(12)]
    story = Story().send(*flood).tell("start", flood[0]).tell("start", flood[1]).tell("start", flood[2]).send("birch-1")
    for ends, starts in zip(flood, flood[3:], strict=False):
        story.tell("end", ends).tell("start", starts)
    for ends in flood[-3:]:
        story.tell("end", ends)
    finding = story.run("birch-1").judge()[FIRST]
    assert not finding.kept
    assert "LATE: birch" in finding.figures


def test_a_first_order_that_gets_the_first_free_dock_is_not_late() -> None:
    flood = [f"acme-{number}" for number in range(4)]
    story = Story().send(*flood).tell("start", flood[0]).tell("start", flood[1]).tell("start", flood[2]).send("birch-1")
    story.tell("end", flood[0]).tell("start", flood[3]).run("birch-1")
    for ends in flood[1:]:
        story.tell("end", ends)
    assert story.judge()[FIRST].kept


def test_one_more_than_the_limit_is_a_failure() -> None:
    three = ("acme-1", "acme-2", "acme-3")
    findings = Story().send(*three).run(*three).judge()
    assert broken(findings) == ["tenant:acme is never over"]
    assert findings["tenant:acme is never over"].figures == "peak 3 of 2, 1 OVER THE LIMIT"


def test_a_limit_that_grows_allows_more_only_from_then_on() -> None:
    four = ("acme-1", "acme-2", "birch-1", "birch-2")
    early = Story().send(*four).run(*four).tell("size", key="warehouse", size=4)
    assert broken(early.judge()) == ["warehouse is never over"]
    late = Story().send(*four).tell("size", key="warehouse", size=4).run(*four)
    assert broken(late.judge()) == []


def test_what_did_not_end_is_lost() -> None:
    assert broken(Story().send("acme-1", "acme-2").run("acme-1").judge()) == ["nothing is lost"]
    assert broken(Story().send("acme-1").tell("start", "acme-1").judge()) == ["nothing is lost"]


def test_what_runs_twice_is_a_failure() -> None:
    findings = Story().send("acme-1").run("acme-1").run("acme-1").judge()
    assert broken(findings) == ["each runs exactly once"]


def test_what_died_with_its_worker_may_run_again_and_frees_its_slot() -> None:
    story = Story().send("acme-1", "acme-2").tell("start", "acme-1").tell("start", "acme-2").tell("killed")
    for what in ("start", "end"):
        story.tell(what, "acme-1", worker=TWO).tell(what, "acme-2", worker=TWO)
    findings = story.judge()
    assert broken(findings) == []
    assert findings["each runs exactly once"].figures == "0 once, 2 again after the kill"
    assert findings["tenant:acme is never over"].figures == "peak 2 of 2"


def test_what_ran_on_another_worker_may_not_run_again_after_the_kill() -> None:
    story = Story().send("acme-1").tell("start", "acme-1", worker=TWO).tell("end", "acme-1", worker=TWO).tell("killed")
    assert broken(story.tell("start", "acme-1").tell("end", "acme-1").judge()) == ["each runs exactly once"]


def test_what_runs_again_before_its_worker_was_killed_is_a_failure() -> None:
    story = Story().send("acme-1").tell("start", "acme-1").tell("start", "acme-1", worker=TWO).tell("killed")
    assert broken(story.tell("end", "acme-1", worker=TWO).judge()) == ["each runs exactly once"]


def test_calls_that_come_before_the_rate_allows_them_are_a_failure() -> None:
    story = Story().send("acme-1", "acme-2", "acme-3").run("acme-1").run("acme-2").run("acme-3")
    assert broken(story.judge(rate=5)) == []
    assert broken(story.judge(rate=1)) == ["carrier-api keeps its rate"]


def test_what_the_audit_finds_is_a_failure() -> None:
    findings = Story().send("acme-1").run("acme-1").judge(audit=("lost-waiter: x",))
    assert broken(findings) == ["the audit is clean"]
    assert findings["the audit is clean"].figures == "lost-waiter: x"


def test_the_ledger_reads_on_from_where_it_was(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    assert ledger.entries() == []
    ledger.note("sent", task_id="acme-1", tenant="acme")
    ledger.note("start", task_id="acme-1", tenant="acme", worker=ONE)
    assert [entry.what for entry in ledger.entries()] == ["sent", "start"]
    with ledger.path.open("a") as file:
        file.write('{"what": "end", ')  # a line that is being written
    assert [entry.what for entry in ledger.entries()] == ["sent", "start"]
    with ledger.path.open("a") as file:
        file.write('"at": 1e12, "task_id": "acme-1", "tenant": "acme", "worker": 101}\n')
    (run,) = runs_of(ledger.entries())
    assert (run.finished, run.keys) == (True, ("tenant:acme", "warehouse"))
    assert [count for _, count in steps_of([run], "warehouse")] == [1, 0]


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_plot_is_drawn(tmp_path: Path, kind: str, start: bytes) -> None:
    story = Story().send("acme-1", "birch-1").run("acme-1").tell("killed", worker=TWO).run("birch-1")
    file = tmp_path / f"running.{kind}"
    draw(story.entries, SIZES, 10, 5, [file])
    assert file.read_bytes().startswith(start)
