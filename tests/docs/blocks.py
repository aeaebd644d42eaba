"""The code blocks of a page, in order: what language each is in, and what it asks to be done.

`python` is run, or, where its first line is a comment with a file's name, written to that file. `pycon` is a session at
Python's prompt, with its output. `console` is a session at the shell's prompt, `$ command`, with its output. Anything
that can't be run has to say so by being `text`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NOT_RUN", "ROOT", "RUN", "Block", "Command", "blocks_of", "commands_of", "file_of", "pages"]

ROOT = Path(__file__).parents[2]
RUN = frozenset({"python", "pycon", "console"})
NOT_RUN = frozenset({"text"})

_FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<code>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (?P<name>[\w/]+\.(?:py|ini|toml))(?:[,:].*)?\n")
_COMMENT = re.compile(r"\s+# .*$")


@dataclass(frozen=True)
class Block:
    """One fenced block. `line` is that of its first line of code."""

    page: str
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command of a console block, with what the page says it prints: "" where it says nothing."""

    text: str
    output: str


def pages() -> list[Path]:
    """README, SECURITY and every page in docs/, without what Sphinx built."""
    return [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks but the directives of MyST, `{...}`."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        language = match["language"].strip()
        if not language.startswith("{"):
            line = text.count("\n", 0, match.start("code")) + 1
            found.append(Block(page.name, line, language, match["code"]))
    return found


def file_of(block: Block) -> str | None:
    """The name in the block's first line, `# shop.py`."""
    match = _FILE.match(block.code)
    return match["name"] if match else None


def commands_of(block: Block) -> list[Command]:
    """Each `$ ` starts a command; the lines below it are its output. A comment behind a command is not part of it."""
    commands: list[Command] = []
    for line in block.code.splitlines():
        if line.startswith("$ "):
            commands.append(Command(_COMMENT.sub("", line[2:]), ""))
        elif commands:
            last = commands[-1]
            commands[-1] = Command(last.text, f"{last.output}{line}\n")
        else:
            raise ValueError(f"{block}: a console block starts with '$ '")
    return commands
