"""The table that a bench prints: one line a figure, with its spread and, where there is one, its goal.

A figure is judged as measured and shown rounded away from its goal's good side, never to our favour.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from tests.bench.rounds import Spread

__all__ = ["Row", "render"]

_HEADINGS = ("", "figure", "8 of 10 rounds", "goal", "")


@dataclass(frozen=True, slots=True)
class Row:
    """`goal` is an upper bound; `below`: the bound itself misses it. `least`: it is a lower bound instead."""

    section: str
    name: str
    figure: Spread
    unit: str
    goal: float | None = None
    below: bool = False
    least: bool = False

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        if self.least:
            return self.figure.median >= self.goal
        return self.figure.median < self.goal or (not self.below and self.figure.median == self.goal)

    @property
    def verdict(self) -> str:
        return {None: "", True: "met", False: "missed"}[self.met]

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "figure": self.figure._asdict(), "met": self.met}

    def cells(self) -> tuple[str, ...]:
        median, low, high = self.figure
        shown = _down if self.least else _up
        between = f"{shown(low)} to {shown(high)}" if low != high else ""
        sign = "≥" if self.least else "<" if self.below else "≤"
        goal = "" if self.goal is None else f"{sign} {self.goal:g}"
        return self.name, f"{shown(median)} {self.unit}", between, goal, self.verdict


def _up(figure: float) -> str:
    digits = _digits(figure)
    return f"{math.ceil(figure * 10**digits) / 10**digits:,.{digits}f}"


def _down(figure: float) -> str:
    digits = _digits(figure)
    return f"{math.floor(figure * 10**digits) / 10**digits:,.{digits}f}"


def _digits(figure: float) -> int:
    """After the point: three that matter, or none where three are before it."""
    return max(0, 2 - math.floor(math.log10(figure))) if figure > 0 else 0


def render(rows: list[Row]) -> str:
    """As a markdown table per section, so that docs/benchmarks.md can take it as it is."""
    widths = [max(len(cells[i]) for cells in (_HEADINGS, *(row.cells() for row in rows))) for i in range(5)]
    lines: list[str] = []
    section = None
    for row in rows:
        if row.section != section:
            section = row.section
            lines += ["", f"**{section}**", "", _line(_HEADINGS, widths), _line(["-" * w for w in widths], widths)]
        lines.append(_line(row.cells(), widths))
    return "\n".join(lines[1:])


def _line(cells: tuple[str, ...] | list[str], widths: list[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
