"""What was acknowledged while a loop was ending is acknowledged, once, and not given back."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Connection, Exchange, Queue
from kombu.asynchronous import Hub
from kombu.log import get_logger

from celery_limits.transport import member as membership
from celery_limits.worker.acknowledgements import Acknowledgements
from tests.redis_server import RedisServer

logger = get_logger(__name__)


@pytest.mark.parametrize("how", ["the loop comes to it", "the loop has ended"])
def test_an_acknowledgement_is_done_once(redis_server: RedisServer, how: str) -> None:
    """A body ends in a thread while the channel that brought its message is closed, and long before the next loop."""
    client: Any = redis_server.client()
    hub, name = Hub(), f"acknowledged-{how.rsplit(maxsplit=1)[-1]}"
    acknowledge = Acknowledgements(hub.call_soon)
    url, options = f"limits+redis+socket://{redis_server.socket}", {"limits_namespace": name}
    with Connection(url, transport_options=options) as connection:
        channel = connection.channel()
        queue = Queue(name, Exchange(""), routing_key=name, channel=channel)
        connection.Producer(channel).publish("1", routing_key=name)
        message = queue.get()
        channel.still_running = lambda: acknowledge.tags
        acknowledge(message.ack_log_error, logger, connection.connection_errors)
        assert acknowledge.tags == {message.delivery_tag}
        channel.close()
        assert client.llen(name) == 0
        if how == "the loop has ended":
            acknowledge.catch_up()
        hub.reset()  # which does what it was told
        assert acknowledge.tags == set()
        assert client.llen(name) == 0
        assert not client.keys(f"*{name}*unacked:*")
        member = channel.member
        member.lease.stop()
        membership.disown(member.lease)
