"""The times that a publisher writes: its `eta` and `expires` decide what may wait in a line, and until when."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from freezegun import freeze_time

from celery_limits import Concurrency
from celery_limits.app.stamp import stamp
from celery_limits.transport.early_park import stamp_of

NOW = datetime(2026, 3, 29, 0, 59, 58, tzinfo=timezone.utc)
"""Two seconds before clocks in Europe are put forward."""
UNTIL = 3
"""The place of the time in a record: rank, delivery, queue, until."""


def takes_nothing() -> None: ...


@pytest.fixture(params=["UTC", "Europe/Berlin"])
def app(request: pytest.FixtureRequest) -> Any:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.timezone = request.param
    app.task(shared=False, name="ship", limits=[Concurrency("k", 1)])(takes_nothing)
    app.finalize()
    return app


def record_of(app: Any, protocol: int = 2, **options: Any) -> list[str] | None:
    """What is recorded of a call that is published now; None if it must go through its queue."""
    message = app.amqp.task_protocols[protocol]("an-id", "ship", (), {}, **options)
    stamp(app, "ship", message, None)
    found = stamp_of({"headers": message.headers, "properties": {"priority": 0}}, "celery")
    return str(found[2]).split("\t") if found else None


@pytest.mark.parametrize("expires", [60, NOW + timedelta(seconds=60), (NOW + timedelta(seconds=60)).isoformat()])
def test_expires_is_a_moment_whatever_the_zone(app: Any, expires: Any) -> None:
    with freeze_time(NOW):
        record = record_of(app, expires=expires)
    assert record is not None
    assert int(record[UNTIL]) == int((NOW.timestamp() + 60) * 1e6)


def test_a_call_without_expires_waits_for_as_long_as_it_takes(app: Any) -> None:
    record = record_of(app)
    assert record is not None
    assert record[UNTIL] == ""


@pytest.mark.parametrize("options", [{"countdown": 5}, {"eta": NOW + timedelta(seconds=5)}, {"countdown": 0.001}])
def test_a_call_with_an_eta_takes_no_place_before_its_time(app: Any, options: Any) -> None:
    with freeze_time(NOW):
        assert record_of(app, **options) is None


@pytest.mark.parametrize("options", [{}, {"expires": 60}, {"countdown": 5}])
def test_a_call_of_protocol_1_goes_through_its_queue(app: Any, options: Any) -> None:
    """Its times are in its body, which only the gate reads."""
    with freeze_time(NOW):
        assert record_of(app, protocol=1, **options) is None
