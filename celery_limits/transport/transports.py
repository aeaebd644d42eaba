"""The transports behind the schemes. `Transport` is what kombu knows: it makes the one that the URL names."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu.transport import get_transport_cls, pyamqp, redis
from redis import Redis, UnixDomainSocketConnection
from redis import exceptions as redis_errors

from celery_limits.secret import MASK

from .channel import Channel, SentinelChannel
from .polling import Loop, Poller
from .schemes import PREFIX, adopt_url, plain_of, scheme_of, uri_of

__all__ = ["AmqpTransport", "AmqpsTransport", "RedisTransport", "SentinelTransport", "Transport", "client_of"]


_PASSING = (redis_errors.ReadOnlyError, redis_errors.OutOfMemoryError)
"""What a failover or more memory ends: to be waited for as a lost connection is, and not the end of a worker."""


class _Plain:
    """Connects by the parameters of the plain URL; to everyone else its connection is the one that was made."""

    can_parse_url = True
    """So kombu leaves it to us to show the URL."""

    @property
    def client(self) -> Any:
        """The connection; in a thread that is in `plainly`, the one by whose parameters it connects."""
        return getattr(self._plain, "client", None) or self._client

    @client.setter
    def client(self, connection: Any) -> None:
        self._client = connection
        self._plain = threading.local()

    def as_uri(self, uri: str, include_password: bool = False, mask: str = MASK) -> str:
        return uri_of(self.client, include_password=include_password, mask=mask)

    @contextmanager
    def plainly(self) -> Iterator[None]:
        """For this thread alone: others of the process go on with the connection as it was made."""
        before = getattr(self._plain, "client", None)
        self._plain.client = plain_of(self._client)
        try:
            yield
        finally:
            self._plain.client = before


class RedisTransport(_Plain, redis.Transport):  # type: ignore[misc]
    """Knows whether an event loop polls its channels."""

    Channel = Channel
    connection_errors = (*redis.Transport.connection_errors, *_PASSING)
    has_loop = False
    supports_batch_publish = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self.has_loop = True
        super().register_with_event_loop(connection, Loop(loop))


class SentinelTransport(RedisTransport, redis.SentinelTransport):  # type: ignore[misc]
    Channel = SentinelChannel


class AmqpTransport(_Plain, pyamqp.Transport):  # type: ignore[misc]
    """RabbitMQ, with its limits in the Redis of `limits_store_url`."""

    def establish_connection(self) -> Any:
        with self.plainly():
            connection = super().establish_connection()
        connection.client = self.client
        return connection


class AmqpsTransport(AmqpTransport, pyamqp.SSLTransport):  # type: ignore[misc]
    pass


class Transport:
    """Not a transport itself: calling it makes one."""

    can_parse_url = True
    connection_errors = RedisTransport.connection_errors + pyamqp.Transport.connection_errors
    channel_errors = redis.Transport.channel_errors + pyamqp.Transport.channel_errors

    def __new__(cls, client: Any, **kwargs: Any) -> Any:
        adopt_url(client)
        return get_transport_cls(PREFIX + scheme_of(client))(client=client, **kwargs)


def client_of(connection: Any, timeout: float) -> Redis | None:
    """A redis-py client with a broker connection's settings, not connected yet; None for another broker."""
    transport = connection.transport
    if not isinstance(transport, redis.Transport):
        return None
    probe: Any = transport.Channel.__new__(transport.Channel)
    probe.connection = transport
    probe._registered = False
    for name in probe.from_transport_options:
        if name in connection.transport_options:
            setattr(probe, name, connection.transport_options[name])
    pool = probe._get_pool()
    pool.connection_kwargs.update(socket_timeout=timeout)
    if not issubclass(pool.connection_class, UnixDomainSocketConnection):
        pool.connection_kwargs.update(socket_connect_timeout=timeout)
    return Redis(connection_pool=pool)
