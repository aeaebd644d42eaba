"""Plays one page, as a reader who types everything that it shows, in the empty directory that this is started in.

    python -m tests.docs.player docs/quickstart.md

Where the page speaks of the Redis on this machine, `redis://localhost:6379/0`, it gets a private one. A worker that it
starts stays until the end of the page. What a command prints must be what the page says it prints, but for ids, times
and the names of hosts; what only becomes true in a moment (a task that was sent a line ago runs) is asked again.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from celery.bin.celery import celery

from celery_limits.embedded import EmbeddedRedis
from tests.docs.blocks import ROOT, Block, Command, blocks_of, commands_of, file_of
from tests.waiting import wait_until

__all__ = ["Player", "play"]

PATIENCE = 120.0
"""Seconds for a worker to be ready, for a program to end, or for a page to come true, where much else goes on."""
READS = frozenset({"list", "show", "explain", "tasks", "check"})
"""Commands that change nothing: what they say may become true in a moment, and they are asked again."""

_LOCAL = re.compile(r"redis://localhost:6379/(\d+)")
_SOCKET = re.compile(r"redis\+socket:///\S+?/redis\.sock(?:\?virtual_host=(\d+))?")
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_VARIES: tuple[tuple[str, str], ...] = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<id>"),
    (r"\b[\w.-]+@[\w.-]+(/\d+/[0-9a-f]+)?", "<worker>"),
    (r"\b\d+(\.\d+)?\s?(s|ms|min)\b", "<time>"),
    (r"\b\d+m\d+s\b", "<time>"),
    (r"\b\d+(\.\d+)?/(s|min|h)\b(?=\s*(\n|$))", "<pace>"),
)


class Player:
    """The state of one page: its files are in the current directory, its names in `names`."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "page"}
        self.redis: EmbeddedRedis | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self.rewritten = False
        # Whatever is started finds the package and the page's own modules.
        os.environ["PYTHONPATH"] = os.pathsep.join((os.getcwd(), str(ROOT)))
        sys.path.insert(0, os.getcwd())
        # A pytest without a configuration of its own looks for one in every directory above, and may find there a
        # `pythonpath` that leads to another copy of the package.
        Path("pytest.ini").write_text("[pytest]\n")

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        if self.redis is not None:
            self.redis.close()

    def play(self, block: Block) -> None:
        code = self._local(block.code)
        if block.language == "python":
            name = file_of(block)
            self._write(name, code) if name else self._run(block, code)
        elif block.language == "pycon":
            self._session(block, code)
        elif block.language == "console":
            for command in commands_of(block):
                self._command(block, command)

    # -- Redis ------------------------------------------------------------------------------------------------------

    def _local(self, text: str) -> str:
        """The text with this page's own Redis for that of the reader's machine; and with more time, where a minute to
        look at a task may be too short."""
        text = text.replace("time.sleep(60)", "time.sleep(600)")
        if self.redis is None and _LOCAL.search(text):
            self.redis = EmbeddedRedis("private-redis")
            self.redis.start()
        redis = self.redis
        return _LOCAL.sub(lambda m: f"redis+socket://{redis.socket}?virtual_host={m[1]}", text) if redis else text

    # -- Python -----------------------------------------------------------------------------------------------------

    def _write(self, name: str, code: str) -> None:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
        if path.suffix == ".py" and path.parent == Path() and not name.startswith("test_"):
            # Tasks of an app that was replaced stay registered in this process, so others have to look at the new one.
            self.rewritten |= sys.modules.pop(path.stem, None) is not None
            importlib.invalidate_caches()
            importlib.import_module(path.stem)

    def _run(self, block: Block, code: str) -> None:
        # Blank lines before it, so that a traceback names the line of the page.
        exec(compile("\n" * (block.line - 1) + code, block.page, "exec"), self.names)

    def _session(self, block: Block, code: str) -> None:
        test = doctest.DocTestParser().get_doctest(code, self.names, str(block), block.page, block.line)
        report = io.StringIO()
        runner = doctest.DocTestRunner(verbose=False, optionflags=_FLAGS)
        if runner.run(test, out=report.write, clear_globs=False).failed:
            raise AssertionError(report.getvalue())
        self.names = test.globs

    # -- the shell --------------------------------------------------------------------------------------------------

    def _command(self, block: Block, command: Command) -> None:
        words = shlex.split(self._local(command.text))
        if words[0] == "pip":
            return _check_install(words)
        if words[0] == "make":
            return _check_target(words)
        if words[0] == "celery" and "worker" in words:
            return self._start_worker(words)
        run = self._celery if words[0] == "celery" and not self.rewritten else _program
        code = 1 if "Error" in command.output or "FAILED" in command.output else 0
        if not command.output:
            said, ended = run(words)
            assert ended == code, f"{block}: {command.text}: exit code {ended}\n{said}"
            return None
        wanted = _plain(command.output)
        last: list[str] = []

        def as_the_page_says() -> bool:
            said, ended = run(words)
            last[:] = [f"exit code {ended}", said]
            return ended == code and doctest.OutputChecker().check_output(wanted, _plain(said), _FLAGS)

        try:
            wait_until(as_the_page_says, command.text, within=PATIENCE if READS & set(words) else 0.0)
        except AssertionError:
            report = [f"{block}: {command.text}", "-- said", *last, "-- and the page", command.output]
            raise AssertionError("\n".join(report)) from None
        return None

    def _celery(self, words: list[str]) -> tuple[str, int]:
        """Called in this process: starting the program takes a second or more."""
        out, ended = io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                celery.main(words[1:], prog_name="celery")
            except SystemExit as end:
                ended = end.code if isinstance(end.code, int) else 0
        return out.getvalue(), ended

    def _start_worker(self, words: list[str]) -> None:
        log = Path(f"worker{len(self.workers)}.log")
        with log.open("wb") as out:
            worker = subprocess.Popen([_beside(words[0]), *words[1:]], stdout=out, stderr=out, start_new_session=True)
        self.workers.append(worker)

        def ready() -> bool:
            assert worker.poll() is None, f"{shlex.join(words)}: ended with {worker.returncode}\n{log.read_text()}"
            return " ready." in log.read_text()

        wait_until(ready, f"{shlex.join(words)} is ready", within=PATIENCE)


def _beside(program: str) -> str:
    """The program of this Python's environment, whether that is activated or not."""
    return str(Path(sys.executable).with_name(program))


def _program(words: list[str]) -> tuple[str, int]:
    done = subprocess.run(
        [_beside(words[0]), *words[1:]],
        check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=PATIENCE,
    )  # fmt: skip
    return done.stdout, done.returncode


def _check_install(words: list[str]) -> None:
    """What the page installs is this package, with extras that it has."""
    assert words[1] == "install", words
    for word in (word for word in words[2:] if not word.startswith("-")):
        match = re.fullmatch(r"celery-limits(?:\[([\w,]+)\])?", word)
        assert match, f"the page installs {word}"
        known = metadata("celery-limits").get_all("Provides-Extra") or []
        assert set((match[1] or "").split(",")) <= {"", *known}, f"{word}: the extras are {known}"


def _check_target(words: list[str]) -> None:
    """The target exists, and make would know what to do."""
    done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"


def _plain(text: str) -> str:
    """What is the same each time it is printed."""
    text = _SOCKET.sub(lambda match: f"redis://localhost:6379/{match[1] or 0}", text)
    text = text.replace(os.getcwd(), "/srv/shop")
    for pattern, instead in _VARIES:
        text = re.sub(pattern, instead, text)
    return text


@contextlib.contextmanager
def _naming(block: Block) -> Iterator[None]:
    try:
        yield
    except BaseException:
        print(f"while playing {block}:", file=sys.stderr)
        raise


def play(page: Path) -> None:
    """The whole page, from its first block to its last."""
    with Player() as player:
        for block in blocks_of(page):
            with _naming(block):
                player.play(block)


if __name__ == "__main__":
    play(Path(sys.argv[1]).resolve())
