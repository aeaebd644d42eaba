"""A Redis that says OOM, READONLY, NOSCRIPT, LOADING or BUSY, denies us, falls silent, dies, or closes in mid-script.

Each is a named error or a call repeated, and its effect happens once or not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis
from redis import exceptions as redis_errors

from celery_limits.store import (
    Policy,
    Store,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from celery_limits.store.audit import audit
from celery_limits.store.errors import translate
from celery_limits.store.outcomes import Admitted, Parked, Released, Renewed, Revoked
from tests.redis_server import RedisServer
from tests.store.actors import ANY, Clock, Worker, c, holders, line_at, names_in, raw_client, ready_in, wind_up
from tests.store.cutting_proxy import CuttingProxy, cutting_proxy
from tests.waiting import wait_until

A = c("a", 1)


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    """One of our own, to mistreat."""
    with RedisServer(redis_server.binary, appendonly="yes") as server:
        yield server


@pytest.fixture
def mine(server: RedisServer, clock: Clock, policy: Policy) -> Iterator[Store]:
    client = server.client(socket_timeout=0.3)
    store = Store(client, "test", policy, clock)
    yield store
    store.close()
    client.close()


def _state(store: Store) -> dict[str, Any]:
    return {name: raw_client(store).dump(store.prefix + name) for name in names_in(store, "*")}


def test_the_text_of_an_error_is_whole_sentences() -> None:
    refused = redis_errors.ConnectionError("Error 111 connecting to localhost:6379. Connection refused.")
    assert str(translate(refused, "beat")) == (
        "beat: Error 111 connecting to localhost:6379. Connection refused. The store can't be reached, is loading its "
        "data, failing over or busy. Limited tasks wait until it is back."
    )


# -- errors that Redis answers with ------------------------------------------------------------------------------


def test_out_of_memory_changes_nothing_and_what_frees_memory_still_works(mine: Store, clock: Clock) -> None:
    w, client = Worker(mine), raw_client(mine)
    w.deliver("runs.n", A)
    w.deliver("waits.n", A)
    before = _state(mine)
    client.config_set("maxmemory", "100kb")
    client.config_set("maxmemory-policy", "noeviction")
    for link in (A, c("free", 1)):
        with pytest.raises(StoreFull, match="maxmemory"):
            w.deliver("new.n", link)
    assert _state(mine) == before
    assert isinstance(mine.beat("w1", renew=True), Renewed), "nobody is taken for dead because Redis is full"
    assert isinstance(w.finish("runs.n"), Released)
    assert ready_in(mine) == ["waits.n"], "a script that has begun to write goes on to its end"
    client.config_set("maxmemory", "0")
    assert isinstance(w.deliver("new.n", c("free", 1)), Admitted)
    assert wind_up(clock, w) == ["waits.n"]


@pytest.mark.parametrize("why", ["replica", "no replicas"])
def test_a_read_only_server_changes_nothing_until_it_is_a_primary_again(mine: Store, clock: Clock, why: str) -> None:
    w, client = Worker(mine), raw_client(mine)
    w.deliver("runs.n", A)
    w.deliver("waits.n", A)
    before = _state(mine)
    if why == "replica":
        client.replicaof("127.0.0.1", 1)
    else:
        client.config_set("min-replicas-to-write", 1)
    for call in (lambda: w.deliver("new.n", A), lambda: mine.release("runs.n", "w1", w.running["runs.n"]), mine.sweep):
        with pytest.raises(StoreReadOnly):
            call()
    assert _state(mine) == before
    if why == "replica":
        client.replicaof("NO", "ONE")
    else:
        client.config_set("min-replicas-to-write", 0)
    assert isinstance(w.finish("runs.n"), Released)
    assert wind_up(clock, w) == ["waits.n"]


def test_scripts_that_the_server_forgot_are_sent_again(mine: Store, clock: Clock) -> None:
    w = Worker(mine)
    for i in range(3):
        raw_client(mine).script_flush()
        w.deliver(f"t{i}.n", c("k", 3))
    raw_client(mine).script_flush()
    w.finish("t0.n")
    assert holders(mine, "k") == {"t1.n", "t2.n"}
    wind_up(clock, w)


def test_a_server_that_runs_anothers_endless_script_is_busy(server: RedisServer, mine: Store, clock: Clock) -> None:
    w = Worker(mine)
    raw_client(mine).config_set("lua-time-limit", 5)
    with server.client() as hog, ThreadPoolExecutor(1) as pool:
        endless = pool.submit(hog.execute_command, "EVAL", "while true do end", 0)
        wait_until(lambda: _is_busy(raw_client(mine)), "the server is busy")
        with pytest.raises(StoreUnavailable, match="BUSY"):
            w.deliver("t.n", A)
        raw_client(mine).script_kill()
        assert isinstance(endless.exception(20), redis_errors.ResponseError)
    assert isinstance(w.deliver("t.n", A), Admitted)
    wind_up(clock, w)


def _is_busy(client: Any) -> bool:
    try:
        client.ping()
    except redis_errors.TimeoutError:
        return False
    except redis_errors.ResponseError as error:
        return "BUSY" in str(error)
    return False


def test_a_server_that_loads_its_data_is_unavailable_and_then_goes_on(
    server: RedisServer, mine: Store, clock: Clock
) -> None:
    w = Worker(mine)
    w.deliver("runs.n", A)
    with server.client() as client, client.pipeline() as ballast:
        for i in range(20_000):  # it looks up from its loading every thousand commands
            ballast.set(f"ballast{i}", i)
        ballast.execute()
    # A hidden setting of Redis, for tests like this one: microseconds to wait before each command that is loaded.
    server.options["key_load_delay"] = 1
    restart = threading.Thread(target=server.restart)
    restart.start()
    with server.client(socket_timeout=20) as client:  # it answers between two thousands, so patience is needed
        patient = Store(client, "test", mine.policy, clock)
        seen = wait_until(lambda: _loading(patient), "the server says that it is loading")
        patient.close()
    assert isinstance(seen, StoreUnavailable)
    restart.join()
    assert isinstance(mine.beat("w1"), Renewed)
    assert isinstance(w.finish("runs.n"), Released)
    wind_up(clock, w)


def _loading(store: Store) -> StoreError | None:
    try:
        store.beat("w1")
    except StoreError as error:
        return error if "loading the dataset" in str(error) else None
    return None


# -- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rights",
    [
        ("+@all", "-@scripting", "~*"),
        ("+@all", "-eval", "-evalsha", "~*"),
        ("+@all", "~elsewhere:*"),
        ("+@read", "+@scripting", "~*"),
    ],
    ids=["no scripting", "no eval", "no keys", "no writing"],
)
def test_a_user_without_the_rights_is_denied_and_changes_nothing(
    server: RedisServer, mine: Store, clock: Clock, rights: tuple[str, ...]
) -> None:
    w = Worker(mine)
    w.deliver("runs.n", A)
    before = _state(mine)
    raw_client(mine).execute_command("ACL", "SETUSER", "clerk", "on", ">secret", *rights)
    with server.client(username="clerk", password="secret") as client:
        denied = Store(client, "test", mine.policy, clock)
        for call in (lambda: denied.beat("w2"), lambda: denied.admit("t.n", (A,), "w1", delivery="d", message=b"m")):
            with pytest.raises(StoreDenied):
                call()
        denied.close()
    assert _state(mine) == before
    wind_up(clock, w)


@pytest.mark.parametrize("password", ["wrong", None])
def test_a_wrong_or_missing_password_is_denied(server: RedisServer, clock: Clock, password: str | None) -> None:
    with server.client() as admin:
        admin.config_set("requirepass", "right")
    with server.client(password=password) as client, pytest.raises(StoreDenied):
        Store(client, "test", clock=clock).beat("w")
    with server.client(password="right") as client:
        store = Store(client, "test", clock=clock)
        store.beat("w")
        store.close()


# -- silence and death ---------------------------------------------------------------------------------------------


def test_a_paused_server_is_unavailable_after_the_socket_timeout(
    server: RedisServer, mine: Store, clock: Clock
) -> None:
    w = Worker(mine)
    server.pause()
    with pytest.raises(StoreUnavailable):
        w.deliver("t.n", A, delivery="d1")
    server.resume()
    assert isinstance(w.deliver("t.n", A, delivery="d1"), Admitted), "whichever attempt got through, it ran once"
    assert holders(mine, "a") == {"t.n"}
    wind_up(clock, w)


def test_a_killed_server_is_unavailable_and_its_data_is_there_again(
    server: RedisServer, mine: Store, clock: Clock
) -> None:
    raw_client(mine).config_set("appendfsync", "always")
    w = Worker(mine)
    w.deliver("runs.n", A)
    w.deliver("waits.n", A)
    server.kill()
    with pytest.raises(StoreUnavailable):
        w.deliver("new.n", A)
    server.start()
    assert isinstance(mine.beat("w1"), Renewed)
    assert line_at(mine, "a") == ["waits.n"]
    assert isinstance(w.finish("runs.n"), Released)
    assert wind_up(clock, w) == ["waits.n"]


# -- connections cut in mid-script ---------------------------------------------------------------------------------


@pytest.fixture
def proxy(redis_server: RedisServer, store: Store) -> Iterator[CuttingProxy]:
    with cutting_proxy(redis_server.socket) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: CuttingProxy, clock: Clock, policy: Policy) -> Iterator[Store]:
    """The same namespace as `store`, over connections that the proxy may cut."""
    with Redis(unix_socket_path=proxy.path) as client:
        store = Store(client, "test", policy, clock)
        yield store
        store.close()


CALLS: dict[str, Callable[[Worker], object]] = {
    "admitted": lambda w: w.deliver("new.n", c("free", 1), delivery="d"),
    "parked": lambda w: w.deliver("new.n", A, delivery="d"),
    "released": lambda w: w.store.release("runs.n", "w1", w.running.pop("runs.n")),
    "back": lambda w: w.finish("runs.n", back=True),
    "cancelled": lambda w: w.store.cancel("waits"),
    "resized": lambda w: w.store.resize("a", 2),
    "paused": lambda w: w.store.pause("a"),
    "resumed": lambda w: w.store.resume("a"),
    "swept": lambda w: w.store.sweep("w1"),
    "renewed": lambda w: w.store.beat("w1"),
    "left": lambda w: w.store.leave("w1"),
}


def _stage(store: Store, clock: Clock) -> Worker:
    raw_client(store).flushall()
    clock.now = 1_700_000_000_000_000
    w = Worker(store)
    w.deliver("runs.n", A)
    w.deliver("waits.n", A)
    return w


def _picture(store: Store) -> dict[str, Any]:
    """Who holds, who waits and what is on its way; times and numbers differ by the microsecond of a repetition."""
    keys = {key: (holders(store, key), line_at(store, key)) for key in ("a", "free")}
    return {
        **keys,
        "ready": ready_in(store),
        "tasks": names_in(store, "task:*"),
        "workers": names_in(store, "worker:*"),
    }


@pytest.mark.leaves_traces
@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("verb", CALLS)
def test_a_connection_cut_in_mid_script_has_its_effect_once(
    store: Store, through: Store, proxy: CuttingProxy, clock: Clock, verb: str, cut: str
) -> None:
    CALLS[verb](_stage(store, clock))
    expected = _picture(store)

    w = _stage(store, clock).through(through)
    proxy.plan = [cut]
    CALLS[verb](w)
    assert proxy.cuts == 1
    assert _picture(store) == expected
    assert audit(store) == []


def test_an_admission_whose_answer_was_lost_has_the_same_fence(
    store: Store, through: Store, proxy: CuttingProxy, clock: Clock
) -> None:
    w = Worker(through)
    proxy.plan = ["after"]
    admitted = w.deliver("t.n", A)
    assert isinstance(admitted, Admitted)
    assert isinstance(w.finish("t.n"), Released)
    proxy.plan = ["after"]
    store.cancel("u")
    assert isinstance(w.deliver("u.n", A), Revoked)
    wind_up(clock, w)


def test_a_connection_that_is_always_cut_is_unavailable(
    store: Store, through: Store, proxy: CuttingProxy, clock: Clock
) -> None:
    w = Worker(store)
    proxy.plan = ["before"] * 100
    with pytest.raises(StoreUnavailable):
        w.through(through).deliver("t.n", A)
    assert holders(store, "a") == set()
    proxy.plan = []
    assert isinstance(w.through(through).deliver("t.n", A), Admitted)
    wind_up(clock, w)


@pytest.mark.parametrize("cuts", [0, 1, 2])
def test_a_restart_that_cuts_connections_and_forgets_scripts_is_one_of_our_errors_or_none(
    store: Store, through: Store, proxy: CuttingProxy, clock: Clock, cuts: int
) -> None:
    w = Worker(through)
    raw_client(store).script_flush()
    proxy.plan = ["before"] * cuts
    try:
        outcome = w.deliver("t.n", A, delivery="d")
    except StoreUnavailable:
        outcome = w.deliver("t.n", A, delivery="d")
    assert isinstance(outcome, Admitted | Parked)
    assert holders(store, "a") == {"t.n"}
    wind_up(clock, w)


def test_two_threads_never_read_each_others_answers(store: Store, clock: Clock) -> None:
    w = Worker(store)

    def life(name: str) -> int:
        worker = Worker(store, name)
        for i in range(100):
            admitted = worker.deliver(f"{name}-{i}.n", c(name, 1))
            assert isinstance(admitted, Admitted)
            assert isinstance(worker.finish(f"{name}-{i}.n"), Released)
        store.leave(name)
        store.close()
        return 100

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(life, ["t1", "t2", "t3", "t4"])) == [100] * 4
    assert w.pick_up(ANY) == []
    wind_up(clock, w)
