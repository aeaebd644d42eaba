"""A worker without a free place leaves what was granted just now to one that has a place, for a second."""

from __future__ import annotations

from typing import Any

from celery_limits.store import Store
from celery_limits.store.outcomes import Admitted, Parked
from tests.store.actors import Clock, c
from tests.store.post import Fetched, Post

LINKS = (c("k", 1),)
QUEUE = "q"


def grant_one(store: Store) -> None:
    """One is let go, and its message is at the front of its queue."""
    for name in ("busy", "idle"):
        store.beat(name)
    first = store.admit("first.n", LINKS, "busy", delivery="1")
    assert isinstance(first, Admitted)
    parked = store.admit("second.n", LINKS, "busy", delivery="2", message=b"m", queue=QUEUE)
    assert isinstance(parked, Parked)
    store.release("first.n", "busy", first.fence)


def end(store: Store, post: Post, worker: str, field: str) -> None:
    admitted = store.admit("second.n", LINKS, worker, delivery="3", field=field, queue=QUEUE)
    assert isinstance(admitted, Admitted)
    store.release("second.n", worker, admitted.fence, acked=[field])
    for name in ("busy", "idle"):
        store.leave(name)


def only(fetched: list[Fetched] | None) -> Fetched:
    assert fetched is not None
    assert len(fetched) == 1
    return fetched[0]


def rings(store: Store) -> bool:
    client: Any = store.client
    return bool(client.exists(f"{store.prefix}call:{QUEUE}"))


def test_it_is_left_to_one_that_has_a_place_who_is_told_of_it(store: Store, clock: Clock) -> None:
    post = Post(store)
    grant_one(store)
    assert post.fetch("busy", 4, flags="b", queue=QUEUE) == []
    assert rings(store)
    one = only(post.fetch("idle", 4, queue=QUEUE))
    end(store, post, "idle", one.field)


def test_when_nobody_came_for_a_second_the_busy_one_takes_it(store: Store, clock: Clock) -> None:
    post = Post(store)
    grant_one(store)
    clock.pass_(1.1)
    one = only(post.fetch("busy", 4, flags="b", queue=QUEUE))
    end(store, post, "busy", one.field)


def test_what_is_in_the_queue_itself_it_takes_as_ever(store: Store, clock: Clock) -> None:
    post = Post(store)
    grant_one(store)
    client: Any = store.client
    client.lpush(QUEUE, b"plain")
    one = only(post.fetch("busy", 4, flags="b", queue=QUEUE))
    assert one.text == b"plain"
    post.acknowledge("busy", [one.field])
    one = only(post.fetch("idle", 4, queue=QUEUE))
    end(store, post, "idle", one.field)
