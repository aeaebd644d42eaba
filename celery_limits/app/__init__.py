"""The limits of one Celery app: its handle, its settings, where its store is, and the stamp on each message."""

from .handle import Limits

__all__ = ["Limits"]
