"""A private server whose clock a test sets: a small library, compiled here and loaded before the C library, adds to
`gettimeofday`, `clock_gettime(CLOCK_REALTIME)` and `time` the microseconds that stand in a file. No other process, and
nothing of the machine, is changed. Where there is no C compiler there is no such server: `is_possible`.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

from tests.redis_server import RedisServer

__all__ = ["SetClockServer", "is_possible"]

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SERVER_CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *page = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) offset = page;
}

static int64_t shift(void) { return offset ? *offset : 0; }

int clock_gettime(clockid_t clock, struct timespec *to) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, to);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t micros = (int64_t)to->tv_sec * 1000000 + to->tv_nsec / 1000 + shift();
        to->tv_nsec = (micros % 1000000) * 1000 + to->tv_nsec % 1000;
        to->tv_sec = micros / 1000000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict to, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    to->tv_sec = now.tv_sec;
    to->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
"""

_COMPILER = shutil.which("cc")


def is_possible() -> bool:
    return _COMPILER is not None and os.uname().sysname == "Linux"


class SetClockServer(RedisServer):
    """A Redis whose clock is `step`ped; the steps survive its restarts."""

    def __init__(self, binary: str | None = None, **options: str | int) -> None:
        super().__init__(binary, **options)
        self._offset = self.directory / "offset"
        self._offset.write_bytes(struct.pack("=q", 0))
        self._library = self.directory / "clock.so"
        assert _COMPILER is not None, "no C compiler: ask is_possible() first"
        build = [_COMPILER, "-shared", "-fPIC", "-O1", "-o", str(self._library), "-x", "c", "-", "-ldl"]
        subprocess.run(build, input=SOURCE.encode(), check=True, capture_output=True)

    def step(self, seconds: float) -> None:
        """Its clock is this much later from now on; earlier, if that is negative."""
        with open(self._offset, "r+b") as file:
            (offset,) = struct.unpack("=q", file.read(8))
            file.seek(0)
            file.write(struct.pack("=q", offset + round(seconds * 1_000_000)))

    def _popen(self, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        own = {"LD_PRELOAD": str(self._library), "SERVER_CLOCK_OFFSET": str(Path(self._offset))}
        return super()._popen(*command, env={**(env or os.environ), **own})
