"""How much of everything a run does: the whole one takes minutes, the quick one about one, and is less exact."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["FULL", "QUICK", "Scale"]


@dataclass(frozen=True, slots=True)
class Scale:
    rounds: int
    """That count; there is one more."""
    noops: int
    naps: int
    probes: int
    """Single latencies a round."""
    flood: int
    sifted: int
    pools: tuple[str, ...] = ("prefork", "threads")
    contended: tuple[str, ...] = ("prefork", "threads")
    """The pools of all that is not throughput."""
    scheme: str = "limits+redis"
    concurrency: int = 2
    """Of the workers whose throughput is measured: Celery's default on a machine of two cores."""
    conf: dict[str, Any] = field(default_factory=dict)
    """Of Celery, on both sides."""


FULL = Scale(rounds=10, noops=2_000, naps=800, probes=60, flood=100_000, sifted=10_000)
QUICK = Scale(rounds=2, noops=800, naps=160, probes=20, flood=5_000, sifted=1_000, contended=("threads",))
