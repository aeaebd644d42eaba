"""`make matrix`: the tests under every Celery and Python that tox finds here, and a table of what passed.

Each environment is one run of tox (see tox.ini). The columns come from the names of the tests: the Redis that they ran
against, the kind of RabbitMQ queue, the pool. An environment whose Python is missing has no row.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "matrix"
README = ROOT / "README.md"
BEGIN, END = "<!-- matrix: begin -->\n", "<!-- matrix: end -->"

COLUMNS = {
    "Redis 6.2": r"[\[-]6\.2[.\d]*[\]-]",
    "Redis 7": r"[\[-]7\.\d[.\d]*[\]-]",
    "Valkey": r"[\[-]valkey-",
    "RabbitMQ classic": r"[\[-]classic[\]-]",
    "quorum": r"[\[-]quorum[\]-]",
    "prefork": r"[\[-]prefork[\]-]",
    "threads": r"[\[-]threads[\]-]",
    "gevent": r"[\[-]gevent[\]-]",
    "eventlet": r"[\[-]eventlet[\]-]",
    "solo": r"[\[-]solo[\]-]",
    "all": "",
}
PRINT_VERSIONS = "import celery, kombu, redis; print(celery.__version__, kombu.__version__, redis.__version__)"


def environments() -> list[str]:
    """Those of tox.ini, the linters' apart."""
    told = subprocess.run(["tox", "list", "--no-desc", "-q"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in told.stdout.split() if re.fullmatch(r"py\d+-celery\d+", name)]


def python_of(name: str) -> str:
    return re.sub(r"py(\d)(\d+)-.*", r"python\1.\2", name)


def run(name: str, jobs: int, arguments: list[str]) -> Path:
    report = RESULTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    print(f"== {name}", file=sys.stderr, flush=True)
    command = ["tox", "run", "-e", name, "--", "-n", str(jobs), "-q", f"--junitxml={report}", *arguments]
    subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
    return report


def outcomes(report: Path) -> dict[str, str]:
    """For each column how many passed, and how many did not."""
    passed, failed = Counter[str](), Counter[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        bad = case.find("failure") is not None or case.find("error") is not None
        for column, pattern in COLUMNS.items():
            if re.search(pattern, case.get("name", "")):
                (failed if bad else passed)[column] += 1
    return {
        column: f"**{failed[column]} of {failed[column] + passed[column]} failed**"
        if failed[column]
        else str(passed[column] or "-")
        for column in COLUMNS
    }


def versions(name: str) -> str:
    python = ROOT / ".tox" / name / "bin" / "python"
    told = subprocess.run([python, "-c", PRINT_VERSIONS], capture_output=True, text=True, check=True).stdout.split()
    return f"Celery {told[0]}, kombu {told[1]}, redis-py {told[2]}"


def table(reports: dict[str, Path]) -> str:
    rows = {name: outcomes(path) for name, path in reports.items() if path.exists()}
    shown = [column for column in COLUMNS if any(row[column] != "-" for row in rows.values())]
    lines = ["| tests that passed | " + " | ".join(shown) + " |", "|---" * (len(shown) + 1) + "|"]
    for name, row in rows.items():
        where = f"{python_of(name).replace('python', 'Python ')}, {versions(name)}"
        lines.append(f"| {where} | " + " | ".join(row[column] for column in shown) + " |")
    return "\n".join(lines) + "\n"


def write(text: str) -> None:
    whole = README.read_text()
    before, after = whole.index(BEGIN) + len(BEGIN), whole.index(END)
    README.write_text(whole[:before] + text + whole[after:])


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.matrix", description="The tests under every Celery and Python."
    )
    parser.add_argument(
        "-e", "--env", action="append", help="only this environment of tox.ini; may be given several times"
    )
    parser.add_argument("-n", "--jobs", type=int, default=2, help="tests at a time (2)")
    parser.add_argument("--table", action="store_true", help="run nothing: the table of the last runs")
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    options, rest = parser.parse_known_args(list(arguments) if arguments is not None else None)
    if shutil.which("tox") is None:
        parser.error("tox is not installed here: pip install tox, or use make matrix")
    RESULTS.mkdir(parents=True, exist_ok=True)
    names = options.env or [name for name in environments() if shutil.which(python_of(name))]
    reports = {name: RESULTS / f"{name}.xml" if options.table else run(name, options.jobs, rest) for name in names}
    text = table(reports)
    print(text)
    if options.write:
        write(text)
    return 1 if "failed**" in text or not all(path.exists() for path in reports.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
