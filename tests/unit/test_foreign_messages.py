"""What is read of a message after it was parked: its properties to publish it again, its body and stamps to end it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery, states
from kombu.message import Message

from celery_limits.declare.chain import ConcurrencyLink
from celery_limits.dispatch.report_end import report_end
from celery_limits.errors import UnreadableMessage
from celery_limits.message.envelope import pack, unpack
from celery_limits.message.header import Header

HEADER = Header(ticket="a.1", links=(ConcurrencyLink(key="k", limit=1),))


def message(body: bytes = b"[[], {}, {}]", **properties: Any) -> Message:
    kind = {"content_type": "application/json", "content_encoding": "utf-8"}
    return Message(body=body, headers={"id": "a", "task": "t"}, properties=properties, **kind)


@pytest.mark.parametrize("expiration", ["x", {}, [], "nan", "inf", float("inf"), -1])
def test_one_that_could_not_be_published_again_is_not_parked(expiration: Any) -> None:
    """It would hold its slots while its publish fails, time and again."""
    with pytest.raises(UnreadableMessage, match="expiration"):
        pack(message(expiration=expiration), "q", HEADER)


@pytest.mark.parametrize("mode", ["x", {}, [2], 3])
def test_nor_is_one_whose_delivery_mode_is_none(mode: Any) -> None:
    with pytest.raises(UnreadableMessage, match="delivery mode"):
        pack(message(delivery_mode=mode), "q", HEADER)


def test_properties_that_kombu_takes_for_its_own_arguments_are_left_out() -> None:
    """They would redirect the publish, or make it fail."""
    forged: dict[str, Any] = {
        "exchange": "evil",
        "routing_key": "evil",
        "retry": True,
        "declare": [1],
        "serializer": "pickle",
    }
    packed, _ = pack(message(priority=3, expiration="1000", reply_to="r", **forged), "q", HEADER)
    assert unpack(packed).properties == {"priority": 3, "expiration": "1000", "reply_to": "r"}


@pytest.mark.parametrize(
    "body", [b"5", b"[1]", b"{not json", b'[[], {}, {"chord": 5, "chain": 7}]', b'[[], {}, {"chord": {"task": 5}}]']
)
def test_the_end_of_one_that_cannot_be_read_is_told_all_the_same(body: bytes) -> None:
    """Else it stays in the outbox, and is tried again for ever."""
    app = Celery("ending", set_as_current=False, broker="memory://", backend="cache+memory://")
    report_end(app, "a.1", pack(message(body), "q", HEADER)[0], "revoked")
    assert app.backend.get_task_meta("a", cache=False)["status"] == states.REVOKED


def test_a_message_of_kombus_that_lacks_a_part_is_read() -> None:
    raw: dict[str, Any] = {"content-type": "application/json", "properties": {}, "headers": None, "body": "[]"}
    assert unpack(json.dumps(raw).encode()).queue == ""
