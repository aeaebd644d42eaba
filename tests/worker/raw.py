"""Messages as anyone can publish them, past every check that Celery and kombu make: onto a Redis list, or into AMQP."""

from __future__ import annotations

import base64
import json
from typing import Any
from uuid import uuid4

import amqp  # type: ignore[import-untyped]
from kombu import Connection

from celery_limits.transport.transports import client_of
from tests.waiting import DEADLINE
from tests.worker.harness import Scene

__all__ = ["envelope", "protocol_1", "protocol_2", "send_raw"]


def envelope(queue: str, headers: Any, body: Any, properties: dict[str, Any] | None = None) -> dict[str, Any]:
    """As kombu writes a message into Redis."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    known = {
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "delivery_tag": uuid4().hex,
        "priority": 0,
        "body_encoding": "base64",
    }
    return {
        "body": base64.b64encode(text).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": {**known, **(properties or {})},
    }


def protocol_2(queue: str, task: str, args: Any, kwargs: Any, embed: Any = None, **options: Any) -> dict[str, Any]:
    """`headers` and `properties` among the options are laid over those of an ordinary message."""
    headers = {"id": uuid4().hex, "task": task, "lang": "py", "retries": 0, **options.pop("headers", {})}
    return envelope(queue, headers, [args, kwargs, embed], **options)


def protocol_1(queue: str, task: str, args: Any, kwargs: Any, **options: Any) -> dict[str, Any]:
    """`fields` among the options are laid over those of an ordinary body."""
    known = {"id": uuid4().hex, "task": task, "args": args, "kwargs": kwargs, "retries": 0, "utc": True}
    return envelope(queue, {}, {**known, **options.pop("fields", {})}, **options)


def send_raw(scene: Scene, *messages: Any) -> None:
    """Each is an envelope; on Redis it may be any text, and anything that JSON has a form for."""
    if scene.app.conf.broker_url.startswith("amqp"):
        _publish(scene, messages)
        return
    client = client_of(scene.app.connection_for_read(), DEADLINE)
    assert client is not None
    for message in messages:
        client.lpush(scene.queue, message if isinstance(message, (bytes, str)) else json.dumps(message))
    client.close()


def _publish(scene: Scene, messages: Any) -> None:
    with Connection(scene.app.conf.broker_url) as connection:
        channel = connection.default_channel
        channel.queue_declare(scene.queue, durable=True, auto_delete=False)
        for message in messages:
            properties = {k: v for k, v in message["properties"].items() if k in ("reply_to", "correlation_id")}
            made = amqp.Message(
                base64.b64decode(message["body"]),
                content_type=message["content-type"],
                content_encoding=message["content-encoding"],
                application_headers=message["headers"],
                priority=message["properties"].get("priority", 0),
                **properties,
            )
            channel.basic_publish(made, exchange="", routing_key=scene.queue)
