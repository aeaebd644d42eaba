"""Foreign text as a terminal or a log may show it: what is not printable is written as an escape.

Task names, ids, keys, queues and worker names come from messages and from Redis, and so from anyone who can write
there. An escape sequence in one of them steers the operator's terminal, a newline forges a log line, and a
bidirectional or zero-width character makes one name look like another. Events and metrics are data, and keep the text
as it is.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["json_text", "printable", "printable_lines"]


def printable(value: object) -> str:
    r"""The text on one line: `"a\nb"` is shown as `a\nb`, with a backslash; printable text is returned as it is."""
    text = value if isinstance(value, str) else str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(value: object) -> str:
    """The same for a text of ours that has several lines: each of them is printable."""
    return "\n".join(map(printable, str(value).split("\n")))


def json_text(data: Any) -> str:
    r"""JSON on one line: `\uXXXX` for what is not printable, so that a reader gets the original strings back."""
    text = json.dumps(data, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
