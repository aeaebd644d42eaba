"""Which of their tests run, how, which are left to the long run, and what can't be the same with our transport."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

__all__ = ["EXPECTED", "SLOW_TIMEOUT", "SUITES", "Suite", "is_slow", "reason_for"]


@dataclass(frozen=True, slots=True)
class Suite:
    """`package` is whose it is; `timeout` is a test's, in seconds; each of the `shards` has a Redis of its own."""

    name: str
    package: str
    paths: tuple[str, ...]
    options: tuple[str, ...] = ()
    timeout: float = 60.0
    shards: int = 1
    tries: int = 3
    """How often a test may fail where it passes on the other side."""
    swap: bool = False
    """The tests take kombu's classes, not a URL; they speak to stand-ins of Redis, so chance has no part in them."""


SUITES = (
    Suite(
        "celery",
        "celery",
        ("t/integration",),
        # Of Azure's blob storage, which fails to import without it.
        ("-p", "celery.contrib.pytest", "--ignore", "t/integration/test_backend.py"),
        timeout=90,
        shards=3,
    ),
    Suite("kombu", "kombu", ("t/integration/test_redis.py", "t/integration/test_redis_brpop_qos.py"), shards=2),
    Suite("kombu-unit", "kombu", ("t/unit/transport/test_redis.py",), tries=1, swap=True),
)

SLOW = (
    "t/integration/test_backend_leak_in_fixture_teardown.py::test_fixture_teardown_releases_backend_connections",
    "t/integration/test_canvas.py::test_chord::test_disabling_flag_allow_error_cb_on_chord_header",
    "t/integration/test_canvas.py::test_chord::test_enabling_flag_allow_error_cb_on_chord_header",
    "t/integration/test_canvas.py::test_chord::test_error_propagates_from_chord",
    "t/integration/test_canvas.py::test_chord::test_flag_allow_error_cb_on_chord_header_on_upgraded_chord",
    "t/integration/test_canvas.py::test_chord::test_large_header",
    "t/integration/test_canvas.py::test_chord::test_nested_chord_header_link_error",
    "t/integration/test_mem_leak_in_exception_handling.py::test_mem_leak_unhandled_exceptions",
    "t/integration/test_tasks.py::test_tasks::test_retry",
    "t/integration/test_tasks.py::test_tasks::test_revoked_by_headers_complex_canvas",
)
"""Node ids of tests that take half a minute to five minutes on any broker; only `MODE=full` runs them."""

SLOW_TIMEOUT = 420.0
"""Seconds for each test of the full run."""

_LEASED = "looks into kombu's record of unacknowledged messages; ours are leased, and recorded elsewhere"
_STAND_IN = "speaks to a stand-in of Redis that knows the commands of kombu and no script"
_AT_ONCE = "a batch of publishes is not kept back: each one is sent at once, in the script that looks for room"
_WAITS = "counts the BRPOPs of kombu; ours wait for a sign of work and fetch with a script"

EXPECTED: dict[str, str] = {
    "celery:*::test_chord_header_id_duplicated_on_rabbitmq_msg_duplication[redis-group-ids]": (
        "is for RabbitMQ, and says so only where the broker's URL begins with redis: ours begins with limits+"
    ),
    "kombu:*::test_RedisRestoreVisible::test_restore_visible_requeues_expired_unacked[*]": _LEASED,
    "kombu:*::test_RedisRestoreBindingLookupFailure::test_failed_requeue_keeps_message_unacked[*]": _LEASED,
    "kombu:*::test_RedisRestoreBindingLookupFailure::test_failed_restore_visible_keeps_message_unacked[*]": _LEASED,
    "kombu:*::test_RedisRestoreAtShutdown::test_unacked_message_requeued_on_connection_close[*]": _LEASED,
    "kombu:*::test_RedisPublishBatch::test_fanout_is_deferred_until_flush[*]": _AT_ONCE,
    "kombu:*::test_drain_events_resumes_pending_brpop_without_resending": _WAITS,
    "kombu:*::test_hub_pauses_pending_brpop_until_ack[message]": _WAITS,
    "kombu-unit:*::test_Channel::test_publish_batch_*": _AT_ONCE,
    "kombu-unit:*::test_Channel::test_sentinel_inherits_publish_batch_support": _AT_ONCE,
    "kombu-unit:*::test_Channel::test_tls_uses_batch_capable_redis_transport": _AT_ONCE,
    "kombu-unit:*::test_Channel::test_brpop_*": _STAND_IN,
    "kombu-unit:*::test_Channel::test_delivery_tag_is_uuid": _STAND_IN,
    "kombu-unit:*::test_Channel::test_put_priority": _STAND_IN,
    "kombu-unit:*::test_Channel::test_rediss_connection": (
        "asks a private method for the parameters of TLS; ours has them where it connects"
    ),
    "kombu-unit:*::test_Channel_streaming_reauth::test_brpop_read_*": _STAND_IN,
    "kombu-unit:*::test_PausedBRPOP::*": _STAND_IN,
    "kombu-unit:*::test_Redis::test_close_in_poll": _STAND_IN,
    "kombu-unit:*::test_Redis::test_get__Empty": _STAND_IN,
    "kombu-unit:*::test_Redis::test_publish__*": _STAND_IN,
    "kombu-unit:*::test_Redis::test_purge": _STAND_IN,
}
"""`suite:node id`, with `*`, to the reason why the outcome differs by design."""


def is_slow(nodeid: str) -> bool:
    return _first_match(nodeid, SLOW) is not None


def reason_for(suite: str, nodeid: str) -> str | None:
    """Why a difference was to be expected; None when it was not."""
    pattern = _first_match(f"{suite}:{nodeid}", EXPECTED)
    return EXPECTED[pattern] if pattern is not None else None


def _first_match(text: str, patterns: tuple[str, ...] | dict[str, str]) -> str | None:
    """Brackets in an id are its parameters, and not a pattern's."""
    plain = text.replace("[", "(").replace("]", ")")
    found = (p for p in patterns if fnmatchcase(plain, p.replace("[", "(").replace("]", ")")))
    return next(found, None)
