"""What a message says is in the worker's log on one line, and steers no terminal that shows it."""

from __future__ import annotations

from celery import states

from tests.waiting import wait_until
from tests.worker.harness import Scene, Workers
from tests.worker.test_gate import send_by_hand


def test_a_task_id_forges_no_log_line(scene: Scene, workers: Workers) -> None:
    """Celery's own lines ("received") quote the id as it is."""
    scene.share("threads")
    worker = workers.shared("threads")
    task_id = f"{scene.key}\n2026 CRITICAL forged\x1b[31m"
    broken = send_by_hand(scene, "broken", task_id, "garbage")
    assert type(broken.wait(states.FAILURE)).__name__ == "CorruptChain"

    def told() -> list[str]:
        return [line for line in worker.log.split("\n") if "can't run" in line and "forged" in line]

    (line,) = wait_until(told, "the worker logs that the task can't run")
    assert line.isprintable()
    assert line.startswith("["), "the line of the log itself, with time and level"
    assert rf"early.quick[{scene.key}\n2026 CRITICAL forged\x1b[31m] can't run: corrupt limits header" in line
