"""The wait of a task, on the span that its tracing has made for it: an event for each line that it stood in.

The trace context itself is no matter of ours: it travels on the message's headers, which are never touched. Where
nobody has imported OpenTelemetry there is no span, and this costs one look-up. It is not imported here.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["WAITS_HEADER", "note_waits"]

WAITS_HEADER = "limits_waits"
"""On the request of a task that has waited: the lines that it stood in, as pairs of key and seconds."""

EVENT = "limits.waited"


def note_waits(request: Any) -> None:
    """Called before and after the body, in the process that runs it: the span begins before one of them and ends after
    the other, in which order the signals may come."""
    waits = getattr(request, WAITS_HEADER, None)
    tracing: Any = sys.modules.get("opentelemetry.trace")
    if not waits or tracing is None:
        return
    span = tracing.get_current_span()
    if span.is_recording():
        for key, seconds in waits:
            span.add_event(EVENT, {"limits.key": key, "limits.seconds": seconds})
        setattr(request, WAITS_HEADER, None)
