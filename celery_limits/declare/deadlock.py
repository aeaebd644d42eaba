"""The deadlock check: do the declared chains of all tasks take their keys in one order?

`check_chains` raises an error that a person can act on, or promises that no two declared templates are ever
held and waited for in opposite orders. Templates of one shape count as one key, callables as themselves;
keys that meet only at run time are left to the store's audit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from itertools import combinations
from typing import NamedTuple

from celery_limits.errors import DeadlockError, DeclarationError, shorten

from .chain import Declared
from .limits import FloatingConcurrency, Key, Limit
from .template import name_of

__all__ = ["check_chains"]

_MAX_NAMED = 5


class _Use(NamedTuple):
    """One task's place in an edge: it takes `before` first and then, still holding it, `after`."""

    task: str
    before: Limit
    after: Limit


_Node = Hashable
_Graph = dict[_Node, dict[_Node, list[_Use]]]


def check_chains(declared: Iterable[Declared]) -> None:
    """Raise `DeadlockError` if the chains could wait for each other, `DeclarationError` if they use one key
    for two kinds of counter. The same declarations give the same message, whatever their order."""
    tasks = sorted(declared, key=lambda chain: chain.task)
    _check_kinds(tasks)
    graph = _graph(tasks)
    cyclic = _without_loose_ends(graph)
    if cyclic:
        raise DeadlockError(_explain(graph, _shortest_cycle(graph, cyclic)))


def _check_kinds(tasks: Iterable[Declared]) -> None:
    """Slots and tokens can't be counted under one name, nor can one size have two sources."""
    first: dict[_Node, tuple[str, Limit]] = {}
    refreshed: dict[_Node, tuple[str, FloatingConcurrency]] = {}
    for chain in tasks:
        for limit in chain.limits:
            task, other = first.setdefault(limit.node, (chain.task, limit))
            if other.holds != limit.holds:
                rate = other if limit.holds else limit
                raise DeclarationError(
                    f"one key for a rate and for concurrency: task {task!r} has {other!r}, task "
                    f"{chain.task!r} has {limit!r}. A key names one counter; {_another_name(rate.key)}"
                )
            if isinstance(limit, FloatingConcurrency):
                task, floating = refreshed.setdefault(limit.node, (chain.task, limit))
                if floating.refresh != limit.refresh:
                    raise DeclarationError(
                        f"one key with two refresh functions: task {task!r} has {floating!r}, task "
                        f"{chain.task!r} has {limit!r}. A key has one size; use one function for it"
                    )


def _another_name(key: Key) -> str:
    if callable(key):
        return "use another function for the rate's key"
    return f"call the rate's key 'rate:{key}', say"


def _graph(tasks: Iterable[Declared]) -> _Graph:
    """An edge from every key to every key that is waited for while it is held. Rates hold nothing, and end
    by themselves, so they are not in it. Neighbours of one shape are walked in key order, so they make no
    edge; with another key between them they do, there and back, and that is a cycle."""
    graph: _Graph = {}
    for chain in tasks:
        holding = [limit for limit in chain.limits if limit.holds]
        for before, after in combinations(holding, 2):
            if before.node != after.node:
                uses = graph.setdefault(before.node, {}).setdefault(after.node, [])
                uses.append(_Use(chain.task, before, after))
    return graph


def _without_loose_ends(graph: _Graph) -> set[_Node]:
    """The keys that are left when those that lead nowhere are taken away, again and again: none if there is
    no cycle."""
    into: dict[_Node, list[_Node]] = {}
    leads_to = {node: len(targets) for node, targets in graph.items()}
    for node, targets in graph.items():
        for target in targets:
            into.setdefault(target, []).append(node)
            leads_to.setdefault(target, 0)
    loose = [node for node, count in leads_to.items() if not count]
    while loose:
        node = loose.pop()
        del leads_to[node]
        for source in into.get(node, ()):
            leads_to[source] -= 1
            if not leads_to[source]:
                loose.append(source)
    return set(leads_to)


def _shortest_cycle(graph: _Graph, among: set[_Node]) -> list[_Node]:
    """A shortest cycle, the first of them by name. No edge cuts across a shortest cycle, so an order that
    breaks it suits all other tasks that use its keys."""
    best: list[_Node] | None = None
    # Names tell callables apart only by module and qualname; the order of tasks decides among equals.
    for start in sorted((node for node in graph if node in among), key=_label):
        cycle = _cycle_through(graph, among, start)
        if cycle and (best is None or len(cycle) < len(best)):
            best = cycle
            if len(best) == 2:
                break
    assert best is not None
    return best


def _cycle_through(graph: _Graph, among: set[_Node], start: _Node) -> list[_Node] | None:
    came_from: dict[_Node, _Node] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for target in sorted(graph.get(node, ()), key=_label):
            if target == start:
                path = [node]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if target in among and target not in came_from:
                came_from[target] = node
                queue.append(target)
    return None


def _explain(graph: _Graph, cycle: list[_Node]) -> str:
    edges = [graph[node][cycle[(i + 1) % len(cycle)]] for i, node in enumerate(cycle)]
    lines = ["these limits can deadlock, each task holding what the next one waits for:"]
    for uses in edges:
        use = uses[0]
        lines.append(
            f"  {_names(uses)} {'takes' if _count(uses) == 1 else 'take'} {_shown(use.before.key)} "
            f"before {_shown(use.after.key)}"
        )
    # The edge that the fewest tasks rely on is the cheapest to turn round; the order starts behind it.
    back = min(range(len(edges)), key=lambda i: (_count(edges[i]), -i))
    order = cycle[back + 1 :] + cycle[: back + 1]
    first_use = {use.before.node: use.before.key for uses in edges for use in uses[::-1]}
    lines.append(f"Take them in one order in all tasks: {', then '.join(_shown(first_use[n]) for n in order)}.")
    lines.append(f"To get there, change {_names(edges[back])}.")
    return "\n".join(lines)


def _names(uses: list[_Use]) -> str:
    names = list(dict.fromkeys(repr(use.task) for use in uses))
    more = len(names) - _MAX_NAMED
    if more > 0:
        names[_MAX_NAMED:] = [f"{more} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _count(uses: list[_Use]) -> int:
    return len({use.task for use in uses})


def _shown(key: Key) -> str:
    return f"<{name_of(key)}>" if callable(key) else shorten(key)


def _label(node: _Node) -> str:
    return f"<{name_of(node)}>" if callable(node) else str(node)
