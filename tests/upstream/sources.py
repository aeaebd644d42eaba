"""Gets the suites: the sdists of the Celery and kombu that are installed here, and an environment to run them in.

Everything goes into one directory that git ignores, and is there already the next time.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
from importlib.metadata import version
from pathlib import Path

from tests.bench.rounds import say

__all__ = ["CACHE", "Sources", "prepare"]

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".upstream"

REQUIREMENTS = (
    "pytest>=9,<10",
    "pytest-click",
    "pytest-freezer",
    "pytest-order",
    "pytest-rerunfailures",
    "pytest-subtests",
    "pytest-timeout",
    "cryptography",
    "django",
    "hypothesis<7",
    "pymemcache",
    "python-dateutil",
    "sqlalchemy",
)
"""What the tests that we run import. No cloud: those of Azure, S3 and others have no Redis in them."""


class Sources:
    """Where the suites are, each with its `t` and the configuration of its pytest, and without the package itself."""

    def __init__(self, directory: Path) -> None:
        self.python = directory / "venv" / "bin" / "python"
        self.suites = {name: directory / f"{name}-{version(name)}" for name in ("celery", "kombu")}
        self.directory = directory


def prepare() -> Sources:
    CACHE.mkdir(exist_ok=True)
    sources = Sources(CACHE)
    _environment(sources)
    for name, place in sources.suites.items():
        if not place.exists():
            _unpack(_download(name, CACHE), place)
    return sources


def _environment(sources: Sources) -> None:
    """The very versions of this environment, or the comparison would be of two other things."""
    pinned = [f"{name}=={version(name)}" for name in ("celery", "kombu", "redis", "hiredis")]
    wanted = [*REQUIREMENTS, *pinned, str(ROOT)]
    stamp = sources.directory / "venv" / ".installed"
    if stamp.exists() and stamp.read_text() == "\n".join(wanted):
        return
    say("making an environment for the suites")
    venv.create(sources.directory / "venv", with_pip=True, clear=True)
    _pip(sources.python, "install", *REQUIREMENTS, *pinned, "-e", str(ROOT))
    stamp.write_text("\n".join(wanted))


def _download(name: str, directory: Path) -> Path:
    say(f"downloading the source of {name} {version(name)}")
    wanted = f"{name}=={version(name)}"
    _pip(Path(sys.executable), "download", "--no-deps", "--no-binary", name, "-d", str(directory), wanted)
    return directory / f"{name}-{version(name)}.tar.gz"


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def _unpack(archive: Path, place: Path) -> None:
    """Only the tests: with the package beside them they would test that instead of the one installed."""
    top = archive.name.removesuffix(".tar.gz")
    with tarfile.open(archive) as file:
        wanted = [m for m in file.getmembers() if _is_wanted(m.name.removeprefix(f"{top}/"))]
        file.extractall(place.with_suffix(".part"), members=wanted, filter="data")
    (place.with_suffix(".part") / top).rename(place)
    place.with_suffix(".part").rmdir()


def _is_wanted(path: str) -> bool:
    return path.startswith("t/") or path in ("pyproject.toml", "setup.cfg", "pytest.ini")
