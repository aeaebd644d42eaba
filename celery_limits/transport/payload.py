"""Messages to bytes and back, in kombu's own JSON, without what each of its calls builds anew."""

from __future__ import annotations

import json
from typing import Any

from kombu.utils import json as kombu_json

__all__ = ["dump", "read"]

_encoder = kombu_json.JSONEncoder()
_plain = json.JSONDecoder().decode
_TYPED = b'"__type__"'
"""What kombu writes around values that JSON has no form for; only then does every object need a second look."""


def dump(message: Any) -> bytes:
    text: str = _encoder.encode(message)
    return text.encode()


def read(payload: bytes) -> Any:
    if _TYPED in payload:
        return kombu_json.loads(payload.decode())
    return _plain(payload.decode())
