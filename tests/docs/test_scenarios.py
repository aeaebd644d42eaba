"""Every scenario and guarantee that a test names is in a page of this repository."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"def test_([lpst]\d+)_")


def test_every_scenario_that_a_test_names_is_described() -> None:
    page = (ROOT / "docs" / "scenarios.md").read_text()
    named = {name.upper() for path in ROOT.glob("tests/**/test_*.py") for name in NAMED.findall(path.read_text())}
    assert "L1" in named
    assert {name for name in named if f"| {name} |" not in page} == set()


def test_no_test_refers_to_a_document_that_is_not_here() -> None:
    """Such as the papers that a release was planned with."""
    outside = re.compile(r"\b(?!README|CHANGELOG|SECURITY|LICENSE)[A-Z]{4,}\.md\b")
    own = Path(__file__).resolve()
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("celery_limits/**/*.py")]
        if path.resolve() != own
        for name in outside.findall(path.read_text())
    ]
    assert found == []
