"""Users with passwords, for clients that cannot carry a token: MQTT's user name and password.

    {"users": [{"name": "attic", "password": "scrypt$14$8$1$<salt>$<hash>",
                "grants": [{"verbs": ["publish"], "topics": ["sensors/attic/#"]}]}]}

``headrace token user`` makes and changes entries. A grant means what it means in a token (``tokens``). An entry with
``"certificate": true`` lets in who shows a client certificate whose common name is the user's; it may have no password.

A password is kept as its scrypt hash, which takes tens of milliseconds and 16 MB on purpose, so it is checked in a
thread (``verify`` blocks). One that was right is remembered by a keyed hash until the file is read again: a fleet that
reconnects is let in at once. A user who does not exist takes as long to be refused as a wrong password.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.clock import Clock, SystemClock
from headrace.errors import InvalidArgument, Unauthenticated
from headrace.frontends.private_file import save_private
from headrace.frontends.tokens import Grant, TokenPrincipal, grants_of
from headrace.limits import (
    MQTT_PASSWORDS_REMEMBERED_MAX,
    PASSWORD_BYTES_MAX,
    TIME_NS_MAX,
    USERS_FILE_BYTES_MAX,
    USERS_MAX,
)

__all__ = ["PasswordCheck", "hash_password", "no_tokens", "save_user"]

_LOG_N: Final = 14
_BLOCK: Final = 8
_NAME_CHARACTERS_MAX: Final = 255
_WRONG: Final = "the user name or the password is wrong"


@dataclass(frozen=True, slots=True)
class _User:
    name: str
    password: str
    certificate: bool
    grants: tuple[Grant, ...]


def no_tokens(token: str | None, namespace: str) -> TokenPrincipal:
    """The check of a server that has users and no keys: nobody comes in by a token."""
    raise Unauthenticated("this server takes no tokens (auth.keys is not set); its users connect by MQTT")


def hash_password(password: bytes) -> str:
    """An entry's ``password``."""
    if not 0 < len(password) <= PASSWORD_BYTES_MAX:
        raise InvalidArgument(f"a password of {len(password)} bytes; it must have 1 to {PASSWORD_BYTES_MAX}")
    salt = secrets.token_bytes(16)
    made = _scrypt(password, salt, _LOG_N, _BLOCK, 1)
    return f"scrypt${_LOG_N}${_BLOCK}$1${_coded(salt)}${_coded(made)}"


def _scrypt(password: bytes, salt: bytes, log_n: int, block: int, lanes: int) -> bytes:
    return hashlib.scrypt(
        password, salt=salt, n=1 << log_n, r=block, p=lanes, maxmem=(256 << log_n) * block * lanes, dklen=32
    )


def _coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _parts(entry: str) -> tuple[bytes, int, int, int, bytes]:
    """(salt, log n, block, lanes, hash); ValueError for anything else."""
    scheme, log_n, block, lanes, salt, made = entry.split("$")
    numbers = int(log_n), int(block), int(lanes)
    if scheme != "scrypt" or not (10 <= numbers[0] <= 20 and 1 <= numbers[1] <= 32 and 1 <= numbers[2] <= 4):
        raise ValueError(entry)
    return base64.b64decode(salt, validate=True), *numbers, base64.b64decode(made, validate=True)


_NOBODYS: Final = f"scrypt${_LOG_N}${_BLOCK}$1${_coded(bytes(16))}${_coded(bytes(32))}"
"""Checked in place of a user who does not exist; no password has this hash."""


class PasswordCheck:
    """The users of a file. ``verify`` may be called in any thread, the rest in one."""

    def __init__(self, path: str | Path, clock: Clock | None = None) -> None:
        self._path = Path(path)
        self._clock = clock or SystemClock()
        self._key = secrets.token_bytes(32)
        self._users = _load(self._path)
        self._known: OrderedDict[bytes, str] = OrderedDict()

    def reload(self) -> None:
        """Read the file again; when there is something wrong with it the old users stay and this raises."""
        self._users = _load(self._path)
        self._known.clear()

    def remembered(self, name: str, password: bytes) -> TokenPrincipal | None:
        """The principal, if this password was right before."""
        digest = self._digest(name, password)
        if digest not in self._known or name not in self._users:
            return None
        self._known.move_to_end(digest)
        return self._principal(self._users[name])

    def verify(self, name: str, password: bytes) -> str:
        """The entry that was matched, for ``admit``. Takes a while; raises Unauthenticated."""
        user = self._users.get(name)
        entry = user.password if user is not None and user.password else _NOBODYS
        salt, log_n, block, lanes, made = _parts(entry)
        fits = hmac.compare_digest(_scrypt(password[:PASSWORD_BYTES_MAX], salt, log_n, block, lanes), made)
        if not fits or user is None or len(password) > PASSWORD_BYTES_MAX:
            raise Unauthenticated(_WRONG)
        return entry

    def admit(self, name: str, password: bytes, entry: str) -> TokenPrincipal:
        """Back in the one thread: the principal, unless the file has changed meanwhile."""
        user = self._users.get(name)
        if user is None or user.password != entry:
            raise Unauthenticated(_WRONG)
        self._known[self._digest(name, password)] = entry
        if len(self._known) > MQTT_PASSWORDS_REMEMBERED_MAX:
            self._known.popitem(last=False)
        return self._principal(user)

    def by_certificate(self, common_name: str) -> TokenPrincipal:
        """Who shows a certificate with this name."""
        user = self._users.get(common_name)
        if user is None or not user.certificate:
            raise Unauthenticated(f"no user {common_name[:80]!r} may come in by a certificate")
        return self._principal(user)

    def again(self, name: str, entry: str) -> TokenPrincipal:
        """Somebody who is connected, by the file as it is now; ``entry`` is what let him in, empty: a certificate."""
        user = self._users.get(name)
        if user is None or (user.password != entry if entry else not user.certificate):
            raise Unauthenticated(f"user {name!r} is not let in any more")
        return self._principal(user)

    def entry_of(self, name: str) -> str:
        """What is written of a user's password."""
        return self._users[name].password

    def _digest(self, name: str, password: bytes) -> bytes:
        return hashlib.blake2b(name.encode() + b"\x00" + password, key=self._key, digest_size=32).digest()

    def _principal(self, user: _User) -> TokenPrincipal:
        return TokenPrincipal(user.name, user.grants, TIME_NS_MAX, self._clock)


def _load(path: Path) -> dict[str, _User]:
    entries = _read(path)
    if len(entries) > USERS_MAX:
        raise InvalidArgument(f"password file {path} has {len(entries)} users; at most {USERS_MAX} are allowed")
    users: dict[str, _User] = {}
    for number, entry in enumerate(entries, 1):
        user = _user(entry, f"password file {path}, user {number}")
        if user.name in users:
            raise InvalidArgument(f"password file {path}: user {user.name!r} is there twice")
        users[user.name] = user
    return users


def _read(path: Path) -> list[Any]:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > USERS_FILE_BYTES_MAX:
            raise InvalidArgument(f"password file {path} has {size_bytes} bytes; at most {USERS_FILE_BYTES_MAX}")
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InvalidArgument(f"password file {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"password file {path} is not JSON: {error}") from None
    users = content.get("users") if isinstance(content, dict) else None
    if not isinstance(users, list):
        raise InvalidArgument(f'password file {path}: must be {{"users": [{{"name": …, "password": …}}, …]}}')
    return users


def _user(entry: Any, where: str) -> _User:
    if not isinstance(entry, dict):
        raise InvalidArgument(f"{where}: must be an object")
    unknown = sorted(set(map(str, entry)) - {"name", "password", "certificate", "grants"})
    if unknown:
        raise InvalidArgument(f"{where} has {unknown[0]!r}; it may have name, password, certificate and grants")
    name = _checked_name(entry.get("name"), where)
    password, certificate = entry.get("password", ""), entry.get("certificate", False)
    if not isinstance(password, str) or not isinstance(certificate, bool):
        raise InvalidArgument(f"{where} ({name!r}): password must be text, certificate true or false")
    if password:
        try:
            _parts(password)
        except ValueError:
            raise InvalidArgument(
                f"{where} ({name!r}): password must be a hash; `headrace token user` makes them"
            ) from None
    elif not certificate:
        raise InvalidArgument(f"{where} ({name!r}) has neither a password nor a certificate")
    try:
        grants = grants_of(entry.get("grants"))
    except InvalidArgument as error:
        raise InvalidArgument(f"{where} ({name!r}): grants {error.message}") from None
    return _User(name, password, certificate, tuple(grants))


def _checked_name(name: Any, where: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARACTERS_MAX or not name.isprintable():
        raise InvalidArgument(f"{where}: name must be 1 to {_NAME_CHARACTERS_MAX} printable characters")
    return name


def save_user(path: str | Path, new: Mapping[str, Any]) -> int:
    """Put a user into a file (made if it is new, for its owner's eyes only) in place of an earlier entry; how many it
    holds now."""
    target = Path(path)
    entries = _read(target) if target.exists() else []
    _user(dict(new), "the entry")
    entries = [one for one in entries if not (isinstance(one, dict) and one.get("name") == new["name"])]
    entries.append(dict(new))
    return _save(target, entries)


def remove_user(path: str | Path, name: str) -> int:
    """Take a user out; how many are left."""
    target = Path(path)
    entries = _read(target)
    left = [one for one in entries if not (isinstance(one, dict) and one.get("name") == name)]
    if len(left) == len(entries):
        raise InvalidArgument(f"password file {path} has no user {name!r}")
    return _save(target, left)


def _save(target: Path, entries: list[Any]) -> int:
    save_private(target, {"users": entries}, "password file")
    return len(entries)
