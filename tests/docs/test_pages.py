"""Every code block of every page is run, with the output that the page shows; and what pages name exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from celery_limits.app.settings import Settings
from tests.docs.blocks import NOT_RUN, ROOT, RUN, Block, blocks_of, commands_of, file_of, pages

LONGEST = 240.0
"""Seconds for a page on a machine with much else to do; most take two."""
NOT_RUN_AT_MOST = 15
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")
_FENCED = re.compile(r"^(`{3,}).*?^\1", re.MULTILINE | re.DOTALL)
PAGES = pages()
PLAYED = [page for page in PAGES if any(block.language in RUN for block in blocks_of(page))]


def name(page: Path) -> str:
    return page.stem


def load(path: Path) -> Any:
    """A module of the documentation, which is in no package."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


settings_reference = load(ROOT / "docs" / "_ext" / "settings_reference.py")


@pytest.mark.timeout(LONGEST + 60)
@pytest.mark.parametrize("page", PLAYED, ids=name)
def test_what_a_page_shows_is_what_happens(page: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.player", str(page)],
        check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONGEST,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_whether_it_can_be_run(page: Path) -> None:
    strange = [f"{block}: {block.language or 'no language'}" for block in blocks_of(page)
               if block.language not in RUN | NOT_RUN]  # fmt: skip
    assert not strange, f"write one of {sorted(RUN)}, or {sorted(NOT_RUN)} for what can't be run"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_block_hides_in_an_indentation(page: Path) -> None:
    """Markdown takes four blanks for code as well, of which nobody could say what it is."""
    hidden = re.findall(r"\n\n {4}\S.*", _FENCED.sub("", page.read_text()))
    assert not hidden, "use a fence"


def test_few_blocks_can_not_be_run() -> None:
    left_out = [str(block) for page in PAGES for block in blocks_of(page) if block.language in NOT_RUN]
    assert len(left_out) <= NOT_RUN_AT_MOST, left_out


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    gone = [match[1] for match in _LINK.finditer(page.read_text()) if not (page.parent / match[1]).exists()]
    assert not gone


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text().split()
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= set(index)


def test_every_setting_is_in_the_reference_with_a_sentence() -> None:
    said, table = settings_reference.descriptions(), settings_reference.settings_table()
    for field in Settings.model_fields:
        assert said[field].endswith("."), field
        assert f"`limits_{field}`" in table
    assert "`'continue'` or `'terminate'`" in table
    assert all(f"| {kind} |" in table for kind in ("seconds", "number", "bool", "text"))


def test_every_flag_is_in_the_reference_with_its_setting() -> None:
    table = settings_reference.flags_table()
    flags = {"store URL": "store_url", "lease SECONDS": "lease", "metrics-port PORT": "metrics_port"}
    for flag, setting in flags.items():
        assert f"| `--limits-{flag}` | `limits_{setting}` |" in table


def block(language: str, code: str) -> Block:
    return Block("page.md", 1, language, code)


def test_blocks_are_found_with_their_language_and_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\na = 1\n```\n\n```{toctree}\nother\n```\n\n````text\n```\n````\n")
    assert [(found.language, found.code, found.line) for found in blocks_of(page)] == [
        ("python", "a = 1\n", 4),
        ("text", "```\n", 12),
    ]


def test_a_first_comment_names_a_file() -> None:
    assert file_of(block("python", "# shop.py\nimport os\n")) == "shop.py"
    assert file_of(block("python", "# proj/settings.py\n")) == "proj/settings.py"
    assert file_of(block("python", "# at most 2 at once\n")) is None


def test_a_console_block_is_commands_and_what_they_print() -> None:
    text = "$ celery -A shop limits list   # all\nKEY  LIMIT\na    2\n$ make test\n"
    first, second = commands_of(block("console", text))
    assert (first.text, first.output) == ("celery -A shop limits list", "KEY  LIMIT\na    2\n")
    assert (second.text, second.output) == ("make test", "")
    with pytest.raises(ValueError, match=r"page.md:1: a console block starts with '\$ '"):
        commands_of(block("console", "celery -A shop limits list\n"))


def play(page: Path) -> subprocess.CompletedProcess[str]:
    """As a reader of the page would, in the directory that it is in."""
    return subprocess.run(
        [sys.executable, "-m", "tests.docs.player", page.name],
        check=False, cwd=page.parent, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONGEST,
    )  # fmt: skip


def test_a_configuration_above_has_no_part_in_a_page_s_own_tests(tmp_path: Path) -> None:
    """The temporary directory of a machine may hold one, which leads to another copy of the package."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "celery_limits.py").write_text("raise ImportError('another copy')\n")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {elsewhere}\n")
    (tmp_path / "reader").mkdir()
    page = tmp_path / "reader" / "page.md"
    page.write_text(
        "```python\n# test_it.py\ndef test_it():\n    import celery_limits.testing\n```\n\n"
        "```console\n$ pytest -q test_it.py\n...1 passed...\n```\n"
    )
    done = play(page)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ("```python\nassert 1 == 2\n```", "page.md"),
        ("```pycon\n>>> 1 + 1\n3\n```", "Expected:"),
        ("```console\n$ python -c 'print(1)'\n2\n```", "-- and the page"),
        ("```console\n$ python -c 'raise SystemExit(3)'\n```", "exit code 3"),
        ("```console\n$ pip install celery-limits[nothing]\n```", "the extras are"),
        ("```console\n$ make no-such-target\n```", "no-such-target"),
    ],
)
def test_a_page_that_is_wrong_fails(blocks: str, said: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{blocks}\n")
    done = play(page)
    assert done.returncode == 1, done.stdout
    assert said in done.stdout
