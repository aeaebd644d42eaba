"""A client that stands for Docker's: images are programs of this machine, volumes directories, networks only names.

A Redis image is a local `redis-server`, a RabbitMQ image a private node, and an image that was built is this Python
with all that is installed in it.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import ImageNotFound

from tests.nodes.containers import Container, Options, RabbitContainer, RedisContainer

__all__ = ["ProcessClient"]

_SERVERS: dict[str, type[Container]] = {"redis": RedisContainer, "rabbitmq": RabbitContainer}


@dataclass
class Network:
    name: str

    def remove(self) -> None:
        """There is nothing of it."""


@dataclass
class Volume:
    name: str
    directory: Path

    def remove(self, force: bool = False) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


@dataclass(frozen=True)
class Image:
    id: str


class Networks:
    def create(self, name: str, **_: Any) -> Network:
        return Network(name)


class Volumes(dict[str, Volume]):
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def create(self, name: str, **_: Any) -> Volume:
        self[name] = volume = Volume(name, self._directory / name)
        volume.directory.mkdir(parents=True)
        return volume


class Images(set[str]):
    def build(self, **_: Any) -> tuple[Image, Iterable[Any]]:
        """Nothing is built: what would be installed in the image is installed here."""
        image = Image(f"sha256:{uuid.uuid4().hex * 2}")
        self.add(image.id)
        return image, ()


class Containers:
    def __init__(self, images: Images, volumes: Volumes, directory: Path) -> None:
        self._images, self._volumes, self._directory = images, volumes, directory
        self._made: list[Container] = []

    def create(
        self,
        image: str,
        command: list[str] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        ports: Mapping[str, Any] | None = None,
        network: str | None = None,
        volumes: Mapping[str, Mapping[str, str]] | None = None,
        labels: Mapping[str, str] | None = None,
        detach: bool = True,
    ) -> Container:
        kind = Container if image in self._images else _SERVERS.get(image.partition(":")[0])
        if kind is None:
            raise ImageNotFound(f"no program here stands for the image {image!r}: only {', '.join(_SERVERS)}")
        mounts = {how["bind"]: self._volumes[name].directory for name, how in (volumes or {}).items()}
        options = Options(
            image,
            list(command or ()),
            {key: str(value) for key, value in (environment or {}).items()},
            dict(ports or {}),
            network or "none",
            dict(labels or {}),
            mounts,
        )
        container = kind(options, self._directory)
        self._made.append(container)
        return container

    def run(self, image: str, command: list[str] | None = None, **options: Any) -> Container:
        container = self.create(image, command, **options)
        try:
            container.start()
        except BaseException:
            container.remove(force=True)
            raise
        return container

    def remove_all(self) -> None:
        for container in self._made:
            container.remove(force=True)


class ProcessClient:
    """What stands for `docker.DockerClient`. `close` ends every process that is left."""

    def __init__(self, directory: Path) -> None:
        self.networks = Networks()
        self.volumes = Volumes(directory / "volumes")
        self.images = Images()
        self.containers = Containers(self.images, self.volumes, directory / "containers")

    def close(self) -> None:
        self.containers.remove_all()
