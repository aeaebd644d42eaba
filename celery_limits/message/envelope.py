"""A broker message as the store keeps it, and back: every byte and property that the next consumer will see.

The envelope is JSON of our own, so it is the same for every broker. The limits header comes last in it, cut where the
store writes position, held keys and fence (see store/lua/include/payload.lua). What came through our own transport on
Redis is kept as it is, in kombu's JSON; both are read here.
"""

from __future__ import annotations

import base64
import inspect
from dataclasses import dataclass
from math import inf
from typing import Any

from kombu.compression import decompress
from kombu.messaging import Producer
from kombu.utils import json

from celery_limits.errors import UnreadableMessage, shorten

from .header import HEADER, Header

__all__ = ["Envelope", "pack", "unpack"]

# What the transport adds on delivery and makes anew on publish, or what travels beside the properties.
_NOT_KEPT = frozenset({"delivery_info", "delivery_tag", "body_encoding", "application_headers"})
# What `Producer.publish` takes for itself. It is no property of any broker's, but a message in a Redis may have it.
_RESERVED = frozenset(inspect.signature(Producer.publish).parameters) - {"delivery_mode", "priority", "expiration"}
_TYPE = frozenset({"content_type", "content_encoding"})
_GAP = b", }}"
"""The end of a message that the store has not handed out: what it writes goes behind the comma."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message that was parked, ready to be published again to the one queue that it came from. The body is not
    compressed; the header `compression` says whether it was, and is to be again."""

    queue: str
    body: bytes | str
    content_type: str | None
    content_encoding: str | None
    headers: dict[str, Any]
    properties: dict[str, Any]


def pack(message: Any, queue: str, header: Header) -> tuple[bytes, int]:
    """A kombu message as bytes, and the offset at which the store writes the chain's state. One that could not be
    published again raises `UnreadableMessage`: it would hold its slots while its publish fails, time and again."""
    body = message.body
    text = body if isinstance(body, str) else base64.b64encode(bytes(body)).decode()
    limits = header.dump()
    for name in ("at", "held", "fence"):
        del limits[name]
    whole = json.dumps(
        {
            "queue": queue,
            "body": text,
            "binary": not isinstance(body, str),
            "type": message.content_type,
            "encoding": message.content_encoding,
            "properties": _kept(message.properties),
            "headers": {k: v for k, v in message.headers.items() if k != HEADER},
            HEADER: limits,
        }
    )
    head = whole[:-2].encode() + b", "
    return head + b"}}", len(head)  # ends with _GAP


def unpack(packed: bytes) -> Envelope:
    """Whether the store has written the chain's state into it, or it is as it lies there."""
    if packed.endswith(_GAP):
        packed = packed[: -len(_GAP)] + b"}}"
    raw = json.loads(packed.decode())
    if "content-type" in raw:
        return _unpack_kombu(raw)
    body = base64.b64decode(raw["body"]) if raw["binary"] else raw["body"]
    headers = {**raw["headers"], HEADER: raw[HEADER]}
    return Envelope(raw["queue"], body, raw["type"], raw["encoding"], headers, raw["properties"])


def _unpack_kombu(raw: dict[str, Any]) -> Envelope:
    properties = raw["properties"]
    body = base64.b64decode(raw["body"]) if properties.get("body_encoding") == "base64" else raw["body"]
    queue = (properties.get("delivery_info") or {}).get("routing_key") or ""
    headers = raw.get("headers") or {}
    if compression := headers.get("compression"):  # which `pack` gets from kombu without
        body = decompress(body, compression)
    return Envelope(queue, body, raw["content-type"], raw.get("content-encoding"), headers, _plain(properties))


def _plain(properties: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in properties.items() if k not in _NOT_KEPT | _TYPE | _RESERVED}


def _kept(properties: dict[str, Any]) -> dict[str, Any]:
    kept = _plain(properties)
    expiration, mode = kept.get("expiration"), kept.get("delivery_mode")
    try:
        if expiration is not None and not 0 <= float(expiration) < inf:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise UnreadableMessage(f"the expiration {shorten(expiration)} is not a number of milliseconds") from None
    if mode is not None and mode not in (1, 2):
        raise UnreadableMessage(f"the delivery mode {shorten(mode)} is neither 1 nor 2")
    return kept
