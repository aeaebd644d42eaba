"""Whether a message is a member of a canvas, so that others depend on its end."""

from __future__ import annotations

from typing import Any

__all__ = ["is_canvas_member"]

_EMBEDDED = ("chord", "callbacks", "errbacks", "chain", "taskset")


def is_canvas_member(headers: Any, embed: Any) -> bool:
    """Whether it is in a group or a chord, or has callbacks, errbacks or a chain behind it.

    `embed` is the third part of the body, or the whole body in protocol 1; of foreign messages, both may be anything.
    """
    if isinstance(headers, dict) and headers.get("group"):
        return True
    return isinstance(embed, dict) and any(embed.get(name) for name in _EMBEDDED)
