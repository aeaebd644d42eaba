"""What an app's declarations say about a key: of which kind it is, and how large, even while nobody uses it.

The store knows only keys that are in use. Those that are declared by a literal ("warehouse") are known beforehand; of
others ("tenant:{tenant_id}") the form is known. Keys made by a callable are known when they are met.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import cast

from celery_limits.declare.chain import Declared
from celery_limits.declare.debounce import Debounce
from celery_limits.declare.limits import Concurrency, FloatingConcurrency, Limit, RateLimit, parse_rate
from celery_limits.declare.template import Template
from celery_limits.declare.workers_size import WORKERS
from celery_limits.store.status import Status

__all__ = ["Catalogue"]

NEAR = 3
"""How many keys to suggest for one that there is not."""


def _declared_size(limit: Limit) -> int | str | None:
    """As the store writes it (see `Status.declared`); None where a callable decides."""
    if isinstance(limit, Concurrency):
        return limit.limit if isinstance(limit.limit, int) else None
    if isinstance(limit, FloatingConcurrency):
        return limit.default
    if isinstance(limit, Debounce):
        return int(cast(float, limit.quiet) * 1e6)
    assert isinstance(limit, RateLimit)
    if callable(limit.rate):
        return None
    burst = limit.burst or (limit.cost if isinstance(limit.cost, int) else 1)
    return f"{parse_rate(limit.rate).interval} {burst}"


class Catalogue:
    """The keys that these declarations can yield."""

    def __init__(self, declared: Iterable[Declared]) -> None:
        self._literal: dict[str, Limit] = {}
        self._templates: list[tuple[int, re.Pattern[str], Limit]] = []
        for limit in (limit for chain in declared for limit in chain.limits):
            if callable(limit.key):
                continue
            template = Template.parse(limit.key)
            if not template.names:
                self._literal.setdefault(template.literals[0], limit)
                continue
            pattern = "(.+)".join(map(re.escape, template.literals))
            self._templates.append((len("".join(template.literals)), re.compile(pattern, re.DOTALL), limit))
        self._templates.sort(key=lambda entry: -entry[0])  # the more of it is fixed, the surer is a match

    @property
    def literals(self) -> list[str]:
        """Keys that exist whether or not anyone uses them."""
        return list(self._literal)

    def limit_of(self, key: str) -> Limit | None:
        """The declaration that yields this key, as far as can be told."""
        if key in self._literal:
            return self._literal[key]
        return next((limit for _, pattern, limit in self._templates if pattern.fullmatch(key)), None)

    def complete(self, status: Status) -> Status:
        """Adds what nobody at the key could tell."""
        limit = self.limit_of(status.key)
        if limit is None or status.declared is not None or status.kind not in (None, limit.kind):
            return status
        follows = isinstance(limit, Concurrency) and limit.limit is WORKERS
        return replace(status, kind=limit.kind, declared=_declared_size(limit), follows_workers=follows)

    def near(self, key: str, keys: Iterable[str]) -> list[str]:
        """Keys that someone who wrote this one may have meant, of these and of those that are declared."""
        candidates = list(dict.fromkeys([*keys, *self._literal]))
        found = get_close_matches(key, candidates, NEAR, 0.6)
        start = [other for other in candidates if key and (other.startswith(key) or other.endswith(f":{key}"))]
        return list(dict.fromkeys([*found, *sorted(start)]))[:NEAR]
