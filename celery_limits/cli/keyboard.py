"""Single key presses from a terminal, without waiting for Enter; the terminal is as before at the end."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Any

__all__ = ["Keyboard", "split_presses"]

_NAMES = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x1b": "escape",
}
_LONGEST = max(map(len, _NAMES))


def split_presses(text: str) -> list[str]:
    """The keys that a terminal sent: their names, or the characters themselves. Keys without a name are left out."""
    presses = []
    while text:
        name = next((text[:size] for size in range(_LONGEST, 0, -1) if text[:size] in _NAMES), None)
        if name == "\x1b" and text[1:2] in ("[", "O"):  # a key that means nothing here
            end = next((i for i, c in enumerate(text[2:], 2) if c.isalpha() or c == "~"), len(text) - 1)
            text = text[end + 1 :]
            continue
        presses.append(_NAMES[name] if name else text[0])
        text = text[len(name) if name else 1 :]
    return presses


class Keyboard:
    """The keys of the terminal that is stdin."""

    def __enter__(self) -> Keyboard:
        self._fd = sys.stdin.fileno()
        self._before: list[Any] = termios.tcgetattr(self._fd)
        tty.setcbreak(self._fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def presses(self, seconds: float) -> list[str]:
        """Keys that were pressed, as soon as there are any; none after so many seconds."""
        ready, _, _ = select.select([self._fd], [], [], max(0.0, seconds))
        return split_presses(os.read(self._fd, 1024).decode(errors="ignore")) if ready else []
