"""Credentials that rotate: every connection, of the broker and of the store, asks the provider when it is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery
from redis import CredentialProvider

from celery_limits import Limits
from celery_limits.store import StoreUnavailable
from celery_limits.transport import member
from tests.redis_server import RedisServer

USER = "rotating"


class Rotating(CredentialProvider):
    """As those of cloud vendors: what it says is valid for a while."""

    password = ""
    asked = 0

    def get_credentials(self) -> tuple[str, str]:
        type(self).asked += 1
        return USER, self.password


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    yield redis_server
    for one in list(member._members.values()):
        one.lease.stop()
        member.disown(one.lease)
    with redis_server.client() as client:
        client.execute_command("ACL", "DELUSER", USER)
        client.flushall()


def rotate(client: Any, password: str) -> None:
    """The old one is not valid any more, and connections that were made with it are closed."""
    Rotating.password, Rotating.asked = password, 0
    client.execute_command("ACL", "SETUSER", USER, "reset", "on", f">{password}", "~*", "&*", "+@all")
    client.execute_command("CLIENT", "KILL", "USER", USER)


def test_every_connection_asks_for_them(server: RedisServer) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", USER, "on")
        rotate(client, "first")
        query = f"credential_provider={__name__}.Rotating"
        app: Any = Celery("rotating", broker=f"limits+redis+socket://{server.socket}?{query}", set_as_current=False)
        app.conf.update(task_default_queue="rotated", limits_namespace="rotated")
        limits = Limits(app)
        for password in ("first", "second", "third"):
            rotate(client, password)
            limits.store.beat("w@host/1/a")
            app.send_task("some.task", countdown=600, retry=True)
            app.send_task("some.task", retry=True)
            with app.connection_for_read() as connection:
                message = connection.default_channel.basic_get("rotated")
                assert message is not None
                message.ack()
            with suppress(StoreUnavailable):  # its connection was closed: the next one asks
                limits.store.listen(0.01)
            limits.store.listen(0.01)
            assert Rotating.asked >= 2  # the store's, and the broker's
        assert client.zcard(f"{limits.store.prefix}later") == 3
        limits.store.close()
        limits.store.hush()
        app.pool.force_close_all()
