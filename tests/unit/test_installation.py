"""What pip installs with the package is what the package imports."""

from __future__ import annotations

import re
from importlib.metadata import requires


def _names(requirements: list[str] | None) -> set[str]:
    return {re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower() for requirement in requirements or ()}


def test_what_kombus_redis_transport_needs_comes_with_us() -> None:
    """kombu asks for it in its extra `redis`, which we can't use: it ties redis to versions of its own choice."""
    needed = [line for line in requires("kombu") or () if re.search(r"""extra == ['"]redis['"]""", line)]
    ours = [line for line in requires("celery-limits") or () if "extra ==" not in line]
    assert _names(needed) <= _names(ours)
