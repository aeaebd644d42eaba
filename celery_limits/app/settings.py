"""Configuration: every `limits_*` name on `app.conf` (`CELERY_LIMITS_*` in Django), in one model.

A name that is not here, or a value that can't be used, is an `ImproperlyConfigured` that says what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from celery.exceptions import ImproperlyConfigured
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from celery_limits.secret import SecretUrl
from celery_limits.store import Policy
from celery_limits.store.keys import prefix_of

__all__ = ["Settings"]

PREFIX = "limits_"
Seconds = Annotated[float, Field(gt=0, le=10**9)]


class Settings(BaseModel):
    """How limits work in one app. Times are seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store_url: SecretUrl | None = Field(default=None, repr=False)
    """URL of the Redis that stores the limits. Default: the broker, if that is a Redis."""

    store_timeout: Seconds = 5.0
    """Seconds after which a call to the store counts as failed."""

    namespace: str = "celery"
    """Apps with the same namespace share their limits. Give apps that share a Redis, and not their limits, different
    ones."""

    lease: Seconds = 30.0
    """Seconds without a heartbeat before a worker is declared dead. Its slots are freed and its messages requeued."""

    grant_timeout: Seconds = 30.0
    """Seconds after which a granted task that no worker has picked up gives its slots to the next."""

    place_ttl: Seconds = 86_400.0
    """Seconds for which a task that went back to its queue keeps its place in line."""

    revoke_ttl: Seconds = 10_800.0
    """Seconds for which a revoked task id is refused."""

    refresh_timeout: Seconds = 30.0
    """Time limit of the refresh function of a floating limit, in seconds."""

    on_lost_lease: Literal["continue", "terminate"] = "continue"
    """What a worker does with its limited tasks when it loses its lease: let them finish, or terminate them before."""

    trust_headers: bool = True
    """Whether a worker believes the limits that a message carries. If False, a message can lower the limits that the
    worker's own tasks declare, and nothing else; see SECURITY.md."""

    delay_in_store: bool = True
    """Whether a task with an `eta` or `countdown` waits in the store, where the broker is `limits+redis://`, and not in
    the memory of a worker as Celery has it."""

    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port on which workers serve metrics for Prometheus; 0 takes a free port. Publishers that set it mark when a
    message was sent. Default: no metrics."""

    metrics_address: str = "127.0.0.1"
    """Address on which the metrics port is opened. "0.0.0.0" opens it on every interface."""

    metrics_keys: Annotated[int, Field(ge=0, le=100_000)] = 200
    """Largest number of keys that Prometheus sees one by one; all others are added up under one name."""

    metrics_groups: Annotated[int, Field(ge=0, le=1000)] = 20
    """So many groups of a key with `fair_by` are shown each by itself to Prometheus; the others of that key as one."""

    @classmethod
    def of(cls, app: Any) -> Settings:
        """The settings of a Celery app, checked."""
        app.conf.get(PREFIX)  # only a configuration that was read knows its namespace
        _check_names(app.conf, cls.model_fields)
        try:
            settings = cls(**_given(app, cls.model_fields))  # no local variable may have a password
            prefix_of(settings.namespace)
        except ValidationError as error:
            raise ImproperlyConfigured(_explain(error)) from None
        except ValueError as error:
            raise ImproperlyConfigured(f"{PREFIX}namespace: {error}") from None
        return settings

    @property
    def policy(self) -> Policy:
        return Policy(self.lease, self.grant_timeout, self.place_ttl, self.revoke_ttl, self.refresh_timeout)


def _given(app: Any, names: Iterable[str]) -> dict[str, Any]:
    found = {name: app.conf.get(PREFIX + name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    name, value = first["loc"][0], first["input"]
    shown = f"<{type(value).__name__}>" if name == "store_url" else repr(value)  # there may be a password in it
    return f"{PREFIX}{name} = {shown}: {first['msg']}"


def _check_names(conf: Any, fields: Iterable[str]) -> None:
    """Refuses a name that is no setting: `limits_leese`, or with a namespace `CELERY_LIMITS_LEESE`."""
    namespace = getattr(conf, "prefix", None) or ""
    known = {PREFIX + name for name in fields}
    if namespace.isupper():
        known |= {f"{namespace}{name.upper()}" for name in known}
    prefixes = (PREFIX, f"{namespace}{PREFIX.upper()}") if namespace.isupper() else (PREFIX,)
    unknown = next((key for key in conf if key.startswith(prefixes) and key not in known), None)
    if unknown is not None:
        near = get_close_matches(unknown, sorted(known), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ImproperlyConfigured(f"there is no setting {unknown}{hint}")
