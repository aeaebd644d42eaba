"""An embedded Redis is one for all, gone with its last user, and keeps its data: with real processes."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import redis

from celery_limits.embedded import EmbeddedRedis, watcher
from tests.unit.embedded_user import User, process_of, run_id, wait_gone


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory for a server; whatever uses it at the end of the test was left behind by it."""
    directory = tmp_path / "redis"
    yield directory
    socket = EmbeddedRedis(directory).socket
    for process in psutil.process_iter(["cmdline"]):
        if str(socket) in " ".join(process.info["cmdline"] or ()):
            wait_gone(process)


def identity_for_a_newcomer(directory: Path) -> str:
    """The server that a new process gets. If the last user's lock was lost, that is another one: the watcher
    has had ample time to begin ending the first, and newcomers wait until it has."""
    with User(directory) as newcomer:
        return newcomer.ask("start")


def servers_in(directory: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["name", "cwd"])
        if process.info["name"] == "redis-server" and process.info["cwd"] == str(directory)
    ]


class TestSharing:
    def test_two_uses_in_one_process_share_one_server(self, directory: Path) -> None:
        with EmbeddedRedis(directory) as one, EmbeddedRedis(directory) as other:
            assert one.url == other.url
            assert run_id(one.url) == run_id(other.url)

    def test_another_process_joins(self, directory: Path) -> None:
        with EmbeddedRedis(directory) as server, User(directory) as user:
            assert user.ask("start") == run_id(server.url)

    def test_eight_processes_that_start_at_once_get_the_same_server(self, directory: Path) -> None:
        with ExitStack() as stack:
            users = [stack.enter_context(User(directory)) for _ in range(8)]
            for user in users:
                assert user.ask("imported") == "False"  # they are up, and wait for the word
            for user in users:
                user.tell("start")
            assert len({user.hear() for user in users}) == 1
            assert len(servers_in(directory)) == 1

    def test_processes_that_come_and_go_lose_nothing(self, directory: Path) -> None:
        """Starts race with ends of the server all the time; two servers at once would each miss some marks."""
        with ExitStack() as stack:
            users = [stack.enter_context(User(directory)) for _ in range(4)]
            for user in users:
                user.tell("rounds")
            assert [user.hear() for user in users] == ["done"] * 4
        with EmbeddedRedis(directory) as server, redis.Redis.from_url(server.url) as client:
            assert client.get("marks") == b"48"

    def test_two_directories_are_two_servers(self, tmp_path: Path) -> None:
        with EmbeddedRedis(tmp_path / "a") as one, EmbeddedRedis(tmp_path / "b") as other:
            assert run_id(one.url) != run_id(other.url)

    def test_a_directory_by_any_name_is_the_same(self, directory: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(directory)
        with EmbeddedRedis(directory) as server, EmbeddedRedis(tmp_path / "link") as other:
            assert other.url == server.url
            assert run_id(other.url) == run_id(server.url)


class TestLifetime:
    def test_gone_with_its_last_user_and_the_data_kept(self, directory: Path) -> None:
        with EmbeddedRedis(directory) as server:
            first, process = run_id(server.url), process_of(server.url)
            with redis.Redis.from_url(server.url) as client:
                client.set("kept", "yes")
        wait_gone(process)

        with server, redis.Redis.from_url(server.url) as client:
            assert run_id(server.url) != first
            assert client.get("kept") == b"yes"

    def test_stays_while_another_user_is_there(self, directory: Path) -> None:
        with User(directory) as first, User(directory) as second:
            identity = first.ask("start")
            second.ask("start")
            first.leave()
            assert identity_for_a_newcomer(directory) == identity

    def test_gone_when_its_user_is_killed_and_the_data_kept(self, directory: Path) -> None:
        with User(directory) as user:
            process = process_of(user.ask("url"))
            user.ask("rounds")
            user.kill()
        wait_gone(process)

        with EmbeddedRedis(directory) as server, redis.Redis.from_url(server.url) as client:
            assert client.get("marks") == b"12"

    def test_a_killed_user_does_not_end_it_for_the_other(self, directory: Path) -> None:
        with User(directory) as killed, EmbeddedRedis(directory) as server:
            identity = killed.ask("start")
            killed.kill()
            assert identity_for_a_newcomer(directory) == identity
            assert run_id(server.url) == identity

    def test_embedded_url_lasts_until_the_process_ends(self, directory: Path) -> None:
        with User(directory) as user:
            url = user.ask("url")
            process = process_of(url)
            assert user.ask("url") == url
            assert process_of(url) == process
            user.leave()
        wait_gone(process)

    def test_closing_twice_is_closing_once(self, directory: Path) -> None:
        server = EmbeddedRedis(directory)
        server.start()
        process = process_of(server.url)
        server.close()
        server.close()
        wait_gone(process)
        assert repr(server) == f"<EmbeddedRedis {str(directory)!r} closed>"

    def test_a_server_whose_watcher_was_killed_goes_too_and_is_started_anew(self, directory: Path) -> None:
        with EmbeddedRedis(directory) as server:
            process = process_of(server.url)
            its_watcher = process.parent()
            assert its_watcher is not None
            its_watcher.kill()
            wait_gone(process)

            server.start()
            assert process_of(server.url) != process

    def test_a_killed_server_is_started_anew_with_its_data(self, directory: Path) -> None:
        with EmbeddedRedis(directory) as server, redis.Redis.from_url(server.url) as client:
            client.set("kept", "yes")
            process = process_of(server.url)
            process.kill()
            wait_gone(process)

            server.start()
            assert client.get("kept") == b"yes"
            assert process_of(server.url) != process

    def test_embedded_url_starts_a_killed_server_anew(self, directory: Path) -> None:
        with User(directory) as user:
            process = process_of(user.ask("url"))
            process.kill()
            wait_gone(process)
            assert process_of(user.ask("url")) != process

    def test_watcher_that_is_told_to_stop_stops_the_server_cleanly(self, directory: Path) -> None:
        with EmbeddedRedis(directory) as server:
            process = process_of(server.url)
            its_watcher = process.parent()
            assert its_watcher is not None
            its_watcher.terminate()
            wait_gone(process)
        assert "ready to exit, bye bye" in (directory / "redis.log").read_text()

    def test_no_user_leaves_zombies_behind(self, directory: Path) -> None:
        with EmbeddedRedis(directory) as server:
            process = process_of(server.url)
            assert process.ppid() not in [child.pid for child in psutil.Process().children()]
        wait_gone(process)


class TestFork:
    def test_a_child_that_closes_it_leaves_it_to_its_parent(self, directory: Path) -> None:
        with User(directory) as user:
            identity = user.ask("start")
            assert user.ask("fork_and_close") == "0"
            assert identity_for_a_newcomer(directory) == identity

    def test_a_child_that_outlives_its_parent_keeps_it_until_it_ends(self, directory: Path) -> None:
        with User(directory) as user:
            identity = user.ask("start")
            process = process_of(user.ask("url"))
            child = psutil.Process(int(user.ask("fork_and_stay")))
            user.process.wait()
            assert identity_for_a_newcomer(directory) == identity
            assert user.ask("url") == EmbeddedRedis(directory).url

            child.kill()
            wait_gone(process)

    def test_a_program_that_a_user_started_does_not_keep_it(self, directory: Path) -> None:
        with User(directory) as user:
            user.ask("start")
            process = process_of(EmbeddedRedis(directory).url)
            program = psutil.Process(int(user.ask("execute")))
            user.leave()
            try:
                wait_gone(process)
                assert program.is_running()
            finally:
                program.kill()

    def test_a_daemon_that_closed_its_files_is_a_user_again(self, directory: Path) -> None:
        with User(directory) as user, EmbeddedRedis(directory) as server:
            user.ask("url")
            user.ask("close_all_files")
            user.ask("url")
            identity = run_id(server.url)
            server.close()
            assert identity_for_a_newcomer(directory) == identity


class TestPrivacy:
    def test_only_this_user_and_no_network(self, directory: Path) -> None:
        with EmbeddedRedis(directory) as server, redis.Redis.from_url(server.url) as client:
            assert client.config_get("port") == {"port": "0"}
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
            assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
            for file in (watcher.USERS, watcher.DATA, "appendonly.aof", "redis.log"):
                assert stat.S_IMODE((directory / file).stat().st_mode) == 0o600

    def test_the_wheel_is_not_imported(self, directory: Path) -> None:
        with User(directory) as user:
            user.ask("start")
            assert user.ask("imported") == "False"

    def test_embedded_url_is_what_embedded_redis_says(self, directory: Path) -> None:
        with User(directory) as user:
            assert user.ask("url") == EmbeddedRedis(directory).url
