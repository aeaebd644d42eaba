"""Texts that people and programs write: URLs, rates, templates, settings. Read, or refused; never a crash."""

from __future__ import annotations

import inspect
from typing import Any

from celery import Celery
from celery.exceptions import ImproperlyConfigured
from hypothesis import assume, given
from hypothesis import strategies as st

from celery_limits.app.settings import Settings
from celery_limits.app.store_url import store_url
from celery_limits.declare.limits import Concurrency, RateLimit, parse_rate
from celery_limits.declare.template import MAX_KEY_BYTES, Template
from celery_limits.errors import DeclarationError, Refused
from celery_limits.secret import SecretUrl, masked
from tests.fuzz.budget import budget

SECRET = "Zs3cr3tZ"
URLISH = st.text(alphabet="ab1:/@?#&=;%[].+-", max_size=30)
SCHEMES = st.sampled_from(["redis", "rediss", "unix", "redis+socket", "socket", "amqp", "limits+redis", "sentinel", ""])


@budget(300)
@given(SCHEMES, URLISH, URLISH, URLISH)
def test_a_url_never_shows_its_password(scheme: str, user: str, around: str, rest: str) -> None:
    """Wherever in the credentials it is, and however broken the URL. What follows the last @ is no password."""
    shown = masked(f"{scheme}://{user}:{around}{SECRET}{around}@{rest}")
    assume("://" not in user + around + rest)
    assert SECRET not in shown


@budget(300)
@given(SCHEMES, URLISH)
def test_a_url_is_one_of_a_redis_or_says_what_to_set(scheme: str, rest: str) -> None:
    app = Celery("fuzz", set_as_current=False)
    try:
        url = store_url(app, SecretUrl(f"{scheme}://{rest}"))
    except ImproperlyConfigured:
        return
    assert url.get_secret_value().split("://")[0] in ("redis", "rediss", "unix")


@budget(500)
@given(
    st.text(max_size=40) | st.text(alphabet="0123456789./smh-e", max_size=20) | st.floats() | st.integers() | st.none()
)
def test_a_rate_is_read_or_refused(value: Any) -> None:
    try:
        rate = parse_rate(value)
    except Refused:
        return
    assert rate.interval_us is None or rate.interval_us >= 10
    assert parse_rate(rate.text) == rate


@budget(300)
@given(st.text(max_size=30), st.integers() | st.text(max_size=9), st.integers() | st.none())
def test_a_declared_rate_limit_is_sound_or_refused(rate: str, burst: Any, cost: Any) -> None:
    try:
        limit = RateLimit("k", rate, burst=burst, cost=cost)
    except (DeclarationError, Refused):
        return
    assert parse_rate(limit.rate)


def _body(tenant: object, other: object = 1, *, named: object = 2) -> None: ...


SIGNATURE = inspect.signature(_body)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=30)
    | st.binary(max_size=9)
    | st.lists(st.integers())
)


@budget(500)
@given(st.text(alphabet="{}tenantothernamed.[]!:_0x ", max_size=30) | st.text(max_size=30), VALUES, VALUES)
def test_a_template_names_a_key_or_is_refused(text: str, tenant: Any, named: Any) -> None:
    try:
        key = Template.parse(text).bind(SIGNATURE)((tenant,), {"named": named})
    except Refused:
        return
    assert 0 < len(key.encode()) <= MAX_KEY_BYTES
    assert "\n" not in key
    assert "\t" not in key


@budget(300)
@given(st.text(max_size=30), st.sampled_from(["__class__", "__init__.__globals__", "real", "0", "x!r", "x:>99999999"]))
def test_a_template_reaches_into_nothing(literal: str, inside: str) -> None:
    for text in (f"{{tenant.{inside}}}", f"{{tenant[{inside}]}}", f"{{tenant!r}}{inside}", "{tenant:>99999999}"):
        try:
            Template.parse(literal.replace("{", "").replace("}", "") + text)
        except Refused:
            continue
        raise AssertionError(f"{text} was not refused")


@budget(300)
@given(st.dictionaries(st.sampled_from(sorted(Settings.model_fields)), VALUES, max_size=4))
def test_settings_are_sound_or_say_what_is_wrong(values: dict[str, Any]) -> None:
    app = Celery("fuzz", set_as_current=False)
    app.conf.update({f"limits_{name}": value for name, value in values.items()})
    try:
        settings = Settings.of(app)
    except ImproperlyConfigured:
        return
    assert 0 < settings.lease <= 10**9
    assert settings.policy.lease == settings.lease


@budget(300)
@given(VALUES, VALUES, VALUES)
def test_a_declared_concurrency_is_sound_or_refused(key: Any, limit: Any, weight: Any) -> None:
    try:
        made = Concurrency(key, limit, weight=weight)
    except DeclarationError:
        return
    assert isinstance(made.limit, int)
    assert isinstance(made.weight, int)
    assert made.limit == 0 or made.weight <= made.limit
