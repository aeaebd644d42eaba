"""Every example runs by itself, to its end, as its first lines say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_it_runs(example: Path) -> None:
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "audit: clean" in done.stdout


def test_the_web_shop_says_what_to_install() -> None:
    (shop,) = (example for example in EXAMPLES if example.name == "fastapi_shop.py")
    without = f"import runpy, sys; sys.modules['uvicorn'] = None; runpy.run_path({str(shop)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "pip install fastapi uvicorn" in done.stderr
    assert "Traceback" not in done.stderr
