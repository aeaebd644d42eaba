"""How much to fuzz: the same few examples in every run, or `LIMITS_FUZZ_EXAMPLES` of them, new ones each time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

__all__ = ["batches_of", "budget"]

_ASKED = os.environ.get("LIMITS_FUZZ_EXAMPLES")


def budget(examples: int) -> settings:
    return settings(
        max_examples=int(_ASKED) if _ASKED else examples,
        derandomize=not _ASKED,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def batches_of(batches: int) -> int:
    """The same for what is sent in batches, of which each takes a second or so."""
    return int(_ASKED) if _ASKED else batches
