"""Flow control for Celery: limits on tasks, kept between delivery and execution.

Declare limits on a task; each message then carries its chain of them, and waits in Redis, outside of queue
and worker, until there is room at every link. This module is the public surface; nothing else is promised.
Importing it makes every Celery app of the process limited, publishers and workers alike.
"""

from .app import Limits
from .declare.debounce import Debounce
from .declare.limits import Concurrency, FloatingConcurrency, RateLimit
from .declare.workers_size import WORKERS
from .errors import CorruptChain, DeadlockError, DeclarationError, LimitError, ResolutionError
from .install import install as _install

__all__ = [
    "WORKERS",
    "Concurrency",
    "CorruptChain",
    "DeadlockError",
    "Debounce",
    "DeclarationError",
    "FloatingConcurrency",
    "LimitError",
    "Limits",
    "RateLimit",
    "ResolutionError",
    "__version__",
]

__version__ = "0.1.0"

_install()
