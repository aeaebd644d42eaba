"""Times as people write them: `90`, `30s`, `10m`, `1h30m`, `2d`."""

from __future__ import annotations

import re
from typing import Any

import click

__all__ = ["DURATION", "parse_duration"]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
LONGEST = 366 * 86_400.0


def parse_duration(text: str) -> float:
    """Seconds. Raises `ValueError` that says how to write it."""
    text = text.strip()
    try:
        seconds = float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None
        if seconds is None:
            if not text or _PART.sub("", text):
                raise ValueError
            seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    except ValueError:
        raise ValueError(f"{text!r} is no time: write 30s, 10m, 1h30m or 2d") from None
    if not 0 < seconds <= LONGEST:
        raise ValueError(f"{text!r}: a time above 0 and of a year at most is needed")
    return seconds


class _Duration(click.ParamType):  # type: ignore[type-arg]
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = _Duration()
