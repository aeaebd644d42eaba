"""Workers that consume one queue must agree on their limits. A starting worker asks the others, and logs differences.

Relies on Celery's mingle: a starting worker sends `hello`, and what a node replies goes to `Mingle.on_node_reply`.
Nodes ignore what they do not know in a reply. With `--without-mingle` nobody asks.
"""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger

from celery_limits.app import Limits

from .registry import patch

__all__ = ["differences"]

logger = get_logger(__name__)
FIELD = "limits"

_MEANING = {
    "namespace": "each enforces the limits of its own namespace, so together they exceed them",
    "store": "each enforces the limits of its own store, so together they exceed them",
    "lease": "the longer one keeps a dead worker's slots longer; give all of them the same",
}


def view_of(app: Any, consumer: Any) -> dict[str, Any] | None:
    """What others compare; None for a worker without limits."""
    if getattr(consumer.controller, "limits_gate", None) is None:
        return None
    limits = Limits(app)
    settings = limits.settings
    return {
        "namespace": settings.namespace,
        "store": limits.url,
        "lease": settings.lease,
        "queues": sorted(app.amqp.queues.consume_from),
    }


def differences(own: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What two workers must not differ in, in words."""
    shared = sorted({*own["queues"]} & {*other.get("queues", ())})
    found = []
    for name, meaning in _MEANING.items():
        if own[name] == other.get(name):
            continue
        same_limits = (
            name == "lease" and own["namespace"] == other.get("namespace") and own["store"] == other.get("store")
        )
        if shared or same_limits:
            of = f"both consume {', '.join(shared)}" if shared else "both share their limits"
            found.append(f"{of}, but {name} is {own[name]!r} here and {other.get(name)!r} there: {meaning}")
    return found


@patch(
    "celery.worker.control:Panel.data[hello]",
    takes="state",
    why="A worker that starts learns the namespace, store and lease of the others.",
)
def say_limits(hello: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    reply = hello(state, *args, **kwargs)
    if isinstance(reply, dict):
        reply[FIELD] = view_of(state.app, state.consumer) or {}
    return reply


@patch(
    "celery.worker.consumer.mingle:Mingle.on_node_reply",
    takes="self c nodename reply",
    why="Workers of one queue that differ in namespace, store or lease log it.",
)
def compare(on_node_reply: Any, mingle: Any, consumer: Any, node: str, reply: Any) -> Any:
    done = on_node_reply(mingle, consumer, node, reply)
    try:
        _compare(consumer, node, reply)
    except Exception as error:  # whatever the other node replied, this one starts
        logger.warning("limits: could not compare the settings of %s with ours: %r", node, error)
    return done


def _compare(consumer: Any, node: str, reply: dict[str, Any]) -> None:
    own = view_of(consumer.app, consumer)
    if own is None:
        return
    if other := reply.get(FIELD):
        for difference in differences(own, other):
            logger.error("limits: %s and this worker %s", node, difference)
        return
    inspect = consumer.app.control.inspect([node], timeout=1.0, connection=consumer.connection, limit=1)
    queues = {queue["name"] for queue in (inspect.active_queues() or {}).get(node, ())}
    if shared := sorted(queues & {*own["queues"]}):
        logger.error(
            "limits: %s consumes %s too, but without limits: its app does not import celery_limits, or has no store "
            "for them; what it takes runs without", node, ", ".join(shared),
        )  # fmt: skip
