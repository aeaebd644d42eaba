"""What the tests rely on when they fail over: there is one primary, and it has all that was ever written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.worker.sentinels import Watched

MUCH = 60_000_000
"""Bytes: more than lies in the buffers of a socket whose reader stands still."""


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with Watched() as watched:
        yield watched


def test_a_replica_that_lags_behind_is_waited_for(watched: Watched) -> None:
    watched.replica.pause()
    with watched.primary.client() as client:
        client.set("much", b"x" * MUCH)
    watched.replica.resume()
    watched.fail_over()
    with watched.primary.client() as client:
        assert client.strlen("much") == MUCH
        client.delete("much")
    watched.bring_back()


def test_who_was_killed_comes_back_as_a_replica(watched: Watched) -> None:
    with watched.primary.client() as client:
        client.set("kept", "1")
    watched.fail_over()
    first_life = watched.replica.log()
    watched.bring_back()
    with watched.replica.client() as client:
        assert client.get("kept") == b"1"
    second_life = watched.replica.log().removeprefix(first_life)
    assert ":S " in second_life
    assert ":M " not in second_life, "nobody could have taken it for a primary"
