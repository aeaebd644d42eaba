"""Flow control for Celery: limits on tasks, kept between delivery and execution.

Declare limits on a task; each message then carries its chain of them, and waits in Redis, outside of queue
and worker, until there is room at every link. This module is the public surface; nothing else is promised.
Importing it makes every Celery app of the process limited, publishers and workers alike.
"""

from .app import Limits
from .errors import CorruptChain, DeadlockError, DeclarationError, LimitError, ResolutionError
from .hooks import install
from .limits import Concurrency, FloatingConcurrency, RateLimit

__all__ = [
    "Concurrency",
    "CorruptChain",
    "DeadlockError",
    "DeclarationError",
    "FloatingConcurrency",
    "LimitError",
    "Limits",
    "RateLimit",
    "ResolutionError",
    "__version__",
]

__version__ = "0.1.0"

install()
