"""Sleeping until the bell rings, or a time has come, exactly.

Redis ends a BLPOP that has timed out when it next looks, which on an idle server is up to a tenth of a second late. So
the command stays outstanding on a connection of its own, and it is this side that stops waiting for its answer. Nothing
is sent for a sleep that ends unheard; a ring in between is found by the next one. (One who is kept from listening may
so take a ring that another could have heard; the sweep that each worker makes once a second makes up for that.)
"""

from __future__ import annotations

import time
from typing import Any

from redis import Redis

from .errors import translated

__all__ = ["Bell"]

OUTSTANDING = 60
"""Seconds after which the server answers anyway, so that a connection that is dead without a word is found out."""


class Bell:
    """For one thread."""

    def __init__(self, client: Redis, *bells: str) -> None:
        self._client, self._bells = client, bells
        self._connection: Any = None

    def wait(self, seconds: float, *bells: str) -> None:
        """Until a bell is rung, but no longer than this; of these from now on, if any are named."""
        until = time.monotonic() + seconds
        if bells and bells != self._bells:
            self.close()
            self._bells = bells
        with translated("listen"):
            try:
                if self._connection is None:
                    pool: Any = self._client.connection_pool
                    self._connection = pool.connection_class(**pool.connection_kwargs)
                    self._connection.connect()  # which asks the sentinel, where there is one
                    self._connection.send_command("BLPOP", *self._bells, OUTSTANDING)
                if self._connection.can_read(timeout=max(0.0, until - time.monotonic())):
                    self._connection.read_response()
                    self._connection.send_command("BLPOP", *self._bells, OUTSTANDING)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
