"""Every change to a class of Celery, kombu or billiard: what is replaced, why, and in which versions.

A module per part of Celery. What a worker hooks into on its own objects (its gate, its consumer, its requests) is in
`worker`, where each module names what it relies on.
"""

from .registry import Patch, UnknownCelery, apply, patches_of

__all__ = ["Patch", "UnknownCelery", "apply", "patches_of"]
