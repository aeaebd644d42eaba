"""Who may see and do what. A role is "none", "read" or "operate".

An `Access` is asked with each request, and answers with a role, or a role and the name of the user, which the log
of changes keeps.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from celery_limits.errors import LimitError

from .http import Request

__all__ = ["ROLES", "Access", "Role", "Visitor", "basic", "hash_password", "is_loopback", "local", "proxy", "visitor"]

Role: TypeAlias = Literal["none", "read", "operate"]
Answer: TypeAlias = "Role | tuple[Role, str]"
Access: TypeAlias = Callable[[Request], Answer]
ROLES: tuple[Role, ...] = ("none", "read", "operate")

_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_N, _R, _P = 2**14, 8, 1


class Visitor(NamedTuple):
    role: Role
    name: str = ""

    @property
    def may_operate(self) -> bool:
        return self.role == "operate"


def visitor(access: Access | Role | None, request: Request) -> Visitor:
    """Asks the access. What it answers that is no role is none."""
    if isinstance(access, str):
        answer: object = access
    else:
        answer = (access or local)(request)
    role, name = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, "")
    return Visitor(role if role in ROLES else "none", str(name))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def local(request: Request) -> Answer:
    """The access where none is given: everything from this machine itself, nothing from elsewhere. What comes
    through a proxy is from elsewhere, and so is what a page of someone else's asks for under a name of its own that
    leads here (DNS
    rebinding)."""
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    forwarded = any(name in request.headers for name in _FORWARDED)
    if is_loopback(request.client) and is_loopback(host) and not forwarded:
        return "operate", "local user"
    return "none"


# -- credentials from a file -------------------------------------------------------------------------------------------


def hash_password(password: str) -> str:
    salt = secrets.token_hex(16)
    return f"scrypt${salt}${_digest(password, salt)}"


def _digest(password: str, salt: str) -> str:
    return hashlib.scrypt(password.encode(), salt=salt.encode(), n=_N, r=_R, p=_P, dklen=32).hex()


class basic:  # noqa: N801  (used as a function)
    """Basic credentials from a file: a line `name:password` or `name:password:role` for each user; the role is read
    where none is named. A password is written as `celery limits web --hash-password` prints it, or plainly. The file
    is read
    again when it changes, and refused while others than its owner may read it."""

    challenge = 'Basic realm="limits", charset="UTF-8"'

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._seen: tuple[int, int] | None = None
        self._users: dict[str, tuple[str, Role]] = {}
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, str] = {}  # credentials that were right, so that each request need not hash
        self._read()

    def _read(self) -> None:
        try:
            status = self.path.stat()
            if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise LimitError(
                    f"{self.path} has passwords, and others than its owner may read it: chmod 600 {self.path}"
                )
            mark = (status.st_mtime_ns, status.st_size)
            if mark != self._seen:
                self._users = dict(_users(self.path))
                self._seen = mark
                self._known.clear()
        except OSError as error:
            raise LimitError(f"the credentials in {self.path} can't be read: {error.strerror}") from None

    def __call__(self, request: Request) -> Answer:
        self._read()
        scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return "none"
        try:
            name, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return "none"
        secret, role = self._users.get(name, (_NOBODY, "none"))
        mark = hmac.digest(self._key, f"{name}:{password}".encode(), "sha256")
        if self._known.get(mark) != secret:
            if not _fits(password, secret):
                return "none"
            if len(self._known) > 1000:
                self._known.clear()
            self._known[mark] = secret
        return role, name


def _fits(password: str, secret: str) -> bool:
    if secret.startswith("scrypt$"):
        _, salt, digest = secret.split("$", 2)
        return hmac.compare_digest(_digest(password, salt), digest)
    return hmac.compare_digest(password.encode(), secret.encode())


_NOBODY = "scrypt$00$00"
"""For a user that there is not: it takes as long to refuse."""


def _users(path: Path) -> list[tuple[str, tuple[str, Role]]]:
    found: list[tuple[str, tuple[str, Role]]] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.strip().partition(":")
        secret, _, last = rest.rpartition(":")
        role: Role = "read"
        if last in ("read", "operate") and secret:
            role = "operate" if last == "operate" else "read"
        else:
            secret = rest
        if not name or not secret or (secret.startswith("scrypt$") and secret.count("$") != 2):
            raise LimitError(f"{path}, line {number}: write name:password or name:password:role")
        found.append((name, (secret, role)))
    return found


# -- a proxy that knows the user --------------------------------------------------------------------------------------


def proxy(
    header: str, roles: Mapping[str, Role] | None = None, default: Role = "read", trusted: tuple[str, ...] = ()
) -> Access:
    """Believes a header that a proxy sets to the name of the user it has let in. The proxy must take that header
    away from what comes from outside, and be the only way to this server: `trusted` are the addresses that it may
    come from, by default
    loopback."""

    def access(request: Request) -> Answer:
        from_proxy = request.client in trusted if trusted else is_loopback(request.client)
        name = request.headers.get(header, "").strip()
        if not from_proxy or not name:
            return "none"
        return (roles or {}).get(name, default), name

    return access
