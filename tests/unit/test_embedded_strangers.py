"""An embedded Redis is its user's alone: it is neither joined nor started where another user could have been first."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_limits.embedded import EmbeddedError, EmbeddedRedis
from tests.unit.embedded_user import NOBODY, User, process_of, run_id, wait_gone

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play two users")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can reach, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="limits-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@contextmanager
def fake_server(address: Path, uid: int) -> Iterator[None]:
    """Something that says PONG at this address, which this user has bound, but to which `uid` listens."""
    with socket.socket(socket.AF_UNIX) as listener:
        old = os.umask(0o077)
        listener.bind(str(address))
        os.umask(old)
        ready, told = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.setuid(uid)
                listener.listen()
                os.write(told, b"1")
                while True:
                    connection, _ = listener.accept()
                    if connection.recv(64):
                        connection.sendall(b"+PONG\r\n")
            finally:
                os._exit(0)
        try:
            assert os.read(ready, 1)
            yield
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
            os.close(ready)
            os.close(told)


@needs_root
class TestOtherUsers:
    def test_the_server_of_another_user_is_not_joined(self, place: Path) -> None:
        with fake_server(place / "redis.sock", NOBODY):
            os.chown(place / "redis.sock", NOBODY, -1)
            os.chown(place, NOBODY, -1)
            whose = f"it belongs to uid {NOBODY}, and this process runs as uid 0"
            with pytest.raises(EmbeddedError, match=f"{whose}.* name a directory of your own"):
                EmbeddedRedis(place).start()

    def test_nor_is_a_directory_of_another_user_touched(self, place: Path) -> None:
        os.chown(place, NOBODY, -1)
        with pytest.raises(EmbeddedError, match="belongs to uid"):
            EmbeddedRedis(place).start()
        assert list(place.iterdir()) == []

    def test_a_user_does_not_join_the_server_of_root(self, place: Path) -> None:
        with EmbeddedRedis(place), User(place) as user:
            user.ask("become_nobody")
            assert f"it belongs to uid 0, and this process runs as uid {NOBODY}" in user.ask("start")

    def test_a_socket_of_another_user_is_not_asked(self, place: Path) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place / "redis.sock"))
            os.chown(place / "redis.sock", NOBODY, -1)
            listener.listen()
            with pytest.raises(EmbeddedError, match=f"the socket .* belongs to uid {NOBODY}"):
                EmbeddedRedis(place).start()
            listener.settimeout(0)
            with pytest.raises(BlockingIOError):
                listener.accept()

    def test_a_server_that_runs_as_another_user_is_not_asked(self, place: Path) -> None:
        """Its socket is this user's, by the file's owner."""
        with (
            fake_server(place / "redis.sock", NOBODY),
            pytest.raises(EmbeddedError, match=f"runs as uid {NOBODY}, and this process as uid 0"),
        ):
            EmbeddedRedis(place).start()

    def test_a_place_for_the_socket_that_is_another_users_is_refused(self, place: Path) -> None:
        directory = place / ("long" * 20) / ("longer" * 20)
        with EmbeddedRedis(directory) as server:
            elsewhere, process = server.socket.parent, process_of(server.url)
        wait_gone(process)
        os.chown(elsewhere, NOBODY, -1)
        with pytest.raises(
            EmbeddedError, match=r"is not a directory of this user's alone.* then remove .*socket\.path"
        ):
            EmbeddedRedis(directory).start()
        shutil.rmtree(elsewhere)


class TestModes:
    @pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777, 0o702])
    def test_a_directory_that_others_may_write_to(self, place: Path, mode: int) -> None:
        place.chmod(mode)
        with pytest.raises(EmbeddedError, match=f"other users may write to it .* Run: chmod 700 {place}"):
            EmbeddedRedis(place).start()
        assert list(place.iterdir()) == []

    def test_one_that_others_may_look_into_is_fine(self, place: Path) -> None:
        with EmbeddedRedis(place) as server:
            assert run_id(server.url)
            assert {path.name: path.stat().st_mode & 0o077 for path in place.iterdir()} == dict.fromkeys(
                (path.name for path in place.iterdir()), 0
            )

    def test_a_server_whose_socket_is_open_to_others(self, place: Path) -> None:
        with EmbeddedRedis(place) as server:
            server.socket.chmod(0o777)
            with pytest.raises(EmbeddedError, match=r"is open to other users \(mode 0777\). Run: chmod 700"):
                EmbeddedRedis(place).start()

    @pytest.mark.parametrize("name", ["users.lock", "data.lock", "redis.log", "redis.log.1", "socket.path"])
    @pytest.mark.parametrize("there", [True, False], ids=["to-a-file", "to-nothing"])
    def test_a_symbolic_link_is_not_followed(self, place: Path, name: str, there: bool) -> None:
        directory, target = place / "data", place / "target"
        directory.mkdir(mode=0o700)
        if there:
            target.write_text("precious")
        (directory / name).symlink_to(target)
        with pytest.raises(EmbeddedError, match=rf"{name} is a symbolic link.* Remove it"):
            EmbeddedRedis(directory).start()
        assert target.exists() == there
        assert not there or target.read_text() == "precious"

    def test_a_socket_that_is_a_link_or_a_file(self, place: Path) -> None:
        with EmbeddedRedis(place / "other") as other:
            (place / "redis.sock").symlink_to(other.socket)
            with pytest.raises(EmbeddedError, match=r"redis\.sock is not a socket"):
                EmbeddedRedis(place).start()


class TestLongNames:
    def test_the_place_of_the_socket_can_not_be_guessed(self, place: Path) -> None:
        long = ("long" * 20, "longer" * 20)
        found = []
        for name in ("one", "two"):
            directory = place / name / Path(*long)
            with EmbeddedRedis(directory) as server, User(directory) as user:
                assert user.ask("start") == run_id(server.url)
                found.append(server.socket.parent)
                again = EmbeddedRedis(directory)
                assert again.socket == server.socket, "it stays, for whoever comes next"
        assert all(
            elsewhere.parent == Path("/tmp") and elsewhere.stat().st_mode & 0o777 == 0o700 for elsewhere in found
        )
        assert len({*found}) == 2
        assert str(os.geteuid()) not in {elsewhere.name.rpartition("-")[2] for elsewhere in found}
        for elsewhere in found:
            shutil.rmtree(elsewhere, ignore_errors=True)

    def test_one_that_was_tidied_away_is_replaced_when_no_server_runs(self, place: Path) -> None:
        directory = place / ("long" * 20) / ("longer" * 20)
        with EmbeddedRedis(directory) as server:
            first, process = server.socket.parent, process_of(server.url)
        wait_gone(process)
        shutil.rmtree(first)
        with EmbeddedRedis(directory) as server:
            assert server.socket.parent != first
            assert run_id(server.url)
            shutil.rmtree(server.socket.parent)
            with pytest.raises(EmbeddedError, match="which is gone, or which this process can't see"):
                EmbeddedRedis(directory).start()
