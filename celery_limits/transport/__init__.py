"""The broker URLs `limits+redis://`, `limits+rediss://`, `limits+sentinel://`, `limits+embedded://` and `limits+amqp://`.

They are drop-ins for the plain ones: the same queues on the same keys, beside plain producers and consumers. On Redis a
fetch is atomic, what a worker has fetched is its own for as long as its lease lasts, and all of it costs less.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from .schemes import SCHEMES

__all__ = ["register"]

_CLASSES = {
    "sentinel": "SentinelTransport",
    "amqp": "AmqpTransport",
    "pyamqp": "AmqpTransport",
    "amqps": "AmqpsTransport",
}


def register() -> None:
    """Makes kombu know the schemes. `limits` alone is what it makes of a URL that it has not parsed."""
    module = f"{__name__}.transports"
    TRANSPORT_ALIASES["limits"] = f"{module}:Transport"
    for scheme in SCHEMES:
        TRANSPORT_ALIASES[f"limits+{scheme}"] = f"{module}:{_CLASSES.get(scheme, 'RedisTransport')}"
