"""Calls of a partner's API: at its published rate, no more at once than it bears, and none while it says `Retry-After`.

The partner here is an HTTP server of this very program, which bears four calls at once and is closed for a second now
and then. What it says goes into Redis, where every worker sees it; a floating limit asks there how many calls may go
out. So one refused call holds back all others, and each of them waits without a worker, instead of being refused too.

Needs nothing but this package with its `embedded` extra; it starts a Redis and a worker of its own and ends by itself:

    python examples/api_client.py
"""

from __future__ import annotations

import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from urllib.error import HTTPError

from celery import Celery, group
from celery.contrib.testing.worker import start_worker
from redis import Redis

from celery_limits import FloatingConcurrency, Limits, RateLimit
from celery_limits.embedded import EmbeddedRedis

AT_ONCE = 4
CALLS = 40
CLOSED = "partner:closed"

app = Celery("client")


# -- our side ------------------------------------------------------------------------------------------------------


def redis() -> Redis:
    return Redis.from_url(app.conf.partner_redis)


def allowed() -> int:
    """What the floating limit asks, every fifth of a second while calls wait."""
    return 0 if redis().exists(CLOSED) else AT_ONCE


@app.task(
    bind=True,
    max_retries=None,
    limits=[
        FloatingConcurrency("partner:calls", default=AT_ONCE, refresh=allowed, every=0.2),
        RateLimit("partner:rate", "30/s", burst=5),
    ],
)
def call(self, number: int) -> int:
    try:
        with urllib.request.urlopen(f"{app.conf.partner_url}/{number}", timeout=10) as answer:
            return int(answer.read())
    except HTTPError as error:
        if error.code != 429:
            raise
        seconds = float(error.headers["Retry-After"])
        redis().set(CLOSED, 1, px=int(seconds * 1000))
        raise self.retry(countdown=seconds) from None


# -- the partner's side --------------------------------------------------------------------------------------------


class Partner(BaseHTTPRequestHandler):
    """Counts what it is asked, and is closed for a second after each 20 calls."""

    lock = Lock()
    served = refused = now = peak = 0
    closed_until = 0.0

    def do_GET(self) -> None:
        cls = type(self)
        with cls.lock:
            cls.now += 1
            cls.peak = max(cls.peak, cls.now)
            closed = time.monotonic() < cls.closed_until
            if closed:
                cls.refused += 1
            else:
                cls.served += 1
                if cls.served % 20 == 0:
                    cls.closed_until = time.monotonic() + 1
        time.sleep(0.05)
        with cls.lock:
            cls.now -= 1
        self.answer(429 if closed else 200)

    def answer(self, status: int) -> None:
        body = self.path.strip("/").encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def partner() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Partner) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, EmbeddedRedis(directory) as server, partner() as url:
        app.conf.update(
            broker_url=f"limits+embedded://{directory}",
            result_backend="cache+memory://",  # client and worker are one process here
            partner_redis=server.url,
            partner_url=url,
        )
        with start_worker(app, pool="threads", concurrency=12, perform_ping_check=False, loglevel="warning"):
            done = group(call.s(number) for number in range(CALLS)).apply_async().get(timeout=90)
        findings = Limits(app).audit() or "clean"
        print(
            f"{len(done)} calls, {Partner.refused} refused while closed; most at once: {Partner.peak} of {AT_ONCE}; "
            f"audit: {findings}"
        )
        assert sorted(done) == list(range(CALLS))
        assert Partner.peak <= AT_ONCE


if __name__ == "__main__":
    main()
