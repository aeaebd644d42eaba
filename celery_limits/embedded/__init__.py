"""A private Redis server from a wheel, for development, tests and `limits+embedded://`; `server` says how it works."""

from .server import EmbeddedError, EmbeddedMissing, EmbeddedRedis, embedded_url

__all__ = ["EmbeddedError", "EmbeddedMissing", "EmbeddedRedis", "embedded_url"]
