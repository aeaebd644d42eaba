"""Configuration: every `limits_*` name on `app.conf` (`CELERY_LIMITS_*` in Django), in one model.

A name that is not here, or a value that can't be used, is an `ImproperlyConfigured` that says what to write instead.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal

from celery.exceptions import ImproperlyConfigured
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .store import Policy
from .store.keys import prefix_of

__all__ = ["Settings"]

PREFIX = "limits_"
Seconds = Annotated[float, Field(gt=0, le=10**9)]


class Settings(BaseModel):
    """How limits work in one app. Times are seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store_url: str | None = Field(default=None, repr=False)
    """The Redis that keeps the limits. Default: the broker, where that is a Redis."""

    store_timeout: Seconds = 5.0
    """How long one call to the store may take before it counts as unreachable."""

    namespace: str = "celery"
    """Apps that share limits share a namespace; others that use the same Redis need one of their own."""

    lease: Seconds = 30.0
    """A worker that has not been heard of for so long is dead: its slots are freed, its messages run elsewhere."""

    grant_timeout: Seconds = 30.0
    """A task whose turn has come but that no worker picks up for so long gives its slots to the next."""

    forget: Seconds = 86_400.0
    """A task that went back to its queue keeps its place in line for so long."""

    remember: Seconds = 10_800.0
    """A revoked task id is refused for so long."""

    refresh_timeout: Seconds = 30.0
    """The time limit of a floating limit's refresh function."""

    on_lost_lease: Literal["continue", "terminate"] = "continue"
    """What a worker that is cut off from the store for longer than its lease does with what it runs."""

    trust_headers: bool = True
    """Whether what a message says about its limits is believed. False: it can lower what this worker's own tasks
    declare, and nothing else; see SECURITY.md."""

    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Workers measure, and serve their figures for Prometheus at this port; publishers mark when a message was sent.
    0 takes a free port. Default: nobody measures."""

    metrics_address: str = "127.0.0.1"
    """Where the port is open: by default to this machine alone. "0.0.0.0" is everywhere."""

    metrics_keys: Annotated[int, Field(ge=0, le=100_000)] = 200
    """So many keys are shown each by itself to Prometheus; the others as one."""

    @classmethod
    def of(cls, app: Any) -> Settings:
        """The settings of a Celery app, checked."""
        given = {name: app.conf.get(PREFIX + name) for name in cls.model_fields}
        unknown = [key for key in app.conf if key.startswith(PREFIX) and key[len(PREFIX) :] not in cls.model_fields]
        if unknown:
            near = get_close_matches(unknown[0], [PREFIX + name for name in cls.model_fields], 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ImproperlyConfigured(f"there is no setting {unknown[0]}{hint}")
        try:
            settings = cls(**{name: value for name, value in given.items() if value is not None})
            prefix_of(settings.namespace)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name, value = first["loc"][0], first["input"]
            shown = f"<{type(value).__name__}>" if name == "store_url" else repr(value)  # there may be a password in it
            raise ImproperlyConfigured(f"{PREFIX}{name} = {shown}: {first['msg']}") from None
        except ValueError as error:
            raise ImproperlyConfigured(f"{PREFIX}namespace: {error}") from None
        return settings

    @property
    def policy(self) -> Policy:
        return Policy(self.lease, self.grant_timeout, self.forget, self.remember, self.refresh_timeout)
