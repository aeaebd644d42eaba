"""Messages to bytes and back, in kombu's own JSON, without what each of its calls builds anew."""

from __future__ import annotations

import json
from typing import Any

from kombu.utils import json as kombu_json

__all__ = ["Unreadable", "dump", "read"]

_encoder = kombu_json.JSONEncoder()
_plain = json.JSONDecoder().decode
_TYPED = b'"__type__"'
"""What kombu writes around values that JSON has no form for; only then does every object need a second look."""


class Unreadable(ValueError):
    """What was in a queue is no message."""


def dump(message: Any) -> bytes:
    text: str = _encoder.encode(message)
    return text.encode()


def read(payload: bytes) -> Any:
    """Raises `Unreadable`, and nothing else, for what is not JSON."""
    try:
        if _TYPED in payload:
            return kombu_json.loads(payload.decode())
        return _plain(payload.decode())
    except Exception as error:  # not JSON, nested too deeply, or a typed value that is not of its type
        raise Unreadable(f"not JSON: {error!r:.200}") from None
