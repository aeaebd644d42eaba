"""A task id that no ticket has room for is never sent to the store: cancel says so, revoke leaves it to Celery."""

from __future__ import annotations

from typing import Any

import pytest

from celery_limits.errors import LimitError
from celery_limits.message.header import MAX_TASK_ID_BYTES, MAX_TICKET_BYTES, new_ticket
from tests.worker.harness import Scene

HUGE = "x" * 10_000_000


def remembered(scene: Scene) -> list[bytes]:
    client: Any = scene.limits.store.client
    return [raw for raw in client.scan_iter(match="*cancel*") if client.type(raw) == b"string"]


@pytest.mark.parametrize("task_id", [HUGE, "x" * (MAX_TASK_ID_BYTES + 1), "é" * 128], ids=["huge", "by-one", "bytes"])
def test_it_is_refused_by_cancel_and_left_alone_by_revoke(scene: Scene, task_id: str) -> None:
    scene.configure(limits_namespace=scene.key)
    with pytest.raises(LimitError, match=f"is longer than {MAX_TASK_ID_BYTES} bytes: no limited task has such an id"):
        scene.limits.cancel(task_id)
    before = {*remembered(scene)}
    if len(task_id) < 1000:  # the broadcast itself is Celery's
        scene.app.control.revoke(task_id)
        scene.app.control.revoke([task_id, task_id])
    assert {*remembered(scene)} == before


def test_the_longest_id_of_a_limited_task_can_be_cancelled(scene: Scene) -> None:
    scene.configure(limits_namespace=scene.key)
    longest = "x" * MAX_TASK_ID_BYTES
    assert scene.limits.cancel(longest).ended == ()
    scene.forget_revoked(longest)
    assert len(new_ticket("x" * (MAX_TICKET_BYTES - 13))) == MAX_TICKET_BYTES
