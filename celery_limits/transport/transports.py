"""The transports behind the schemes. `Transport` is what kombu knows: it makes the one that the URL names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu.transport import get_transport_cls, pyamqp, redis
from redis import Redis, UnixDomainSocketConnection
from redis import exceptions as redis_errors

from . import declaring
from .channel import Channel, SentinelChannel
from .polling import Loop, Poller
from .url import PREFIX, plain_of, scheme_of

__all__ = ["AmqpTransport", "AmqpsTransport", "RedisTransport", "SentinelTransport", "Transport", "client_of"]


_PASSING = (redis_errors.ReadOnlyError, redis_errors.OutOfMemoryError)
"""What a failover or more memory ends: to be waited for as a lost connection is, and not the end of a worker."""


class _Plain:
    """Connects by the parameters of the plain URL; to everyone else its connection is the one that was made."""

    client: Any

    @contextmanager
    def plainly(self) -> Iterator[None]:
        real, self.client = self.client, plain_of(self.client)
        try:
            yield
        finally:
            self.client = real


class RedisTransport(_Plain, redis.Transport):  # type: ignore[misc]
    """Knows whether an event loop polls its channels."""

    Channel = Channel
    connection_errors = (*redis.Transport.connection_errors, *_PASSING)
    has_loop = False
    supports_batch_publish = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()
        declaring.install()

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
