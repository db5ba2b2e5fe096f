"""The keys that tokens are signed and checked with: a JSON Web Key set in a file.

    {"keys": [{"kid": "2026-11", "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "x": "…", "d": "…"}, …]}

Every key names the one algorithm it is for; a token's own idea of its algorithm is compared with that and never
obeyed, so that neither ``none`` nor a public key used as a shared secret opens a door. Several keys at once are how
keys are exchanged: add the new one, sign with it, and remove the old one when its last token has expired.

Whoever only checks needs only public halves (``public_set``); a secret or private half makes tokens, so the file that
holds one is made readable for its owner alone. Keys are told apart by ``kid`` and looked up in a table: a kid is never
a path, a query or an address.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.errors import InvalidArgument
from headrace.frontends.private_file import save_private
from headrace.limits import KEY_FILE_BYTES_MAX, KEY_ID_CHARACTERS_MAX, KEYS_MAX, RSA_BITS_MIN, SECRET_BYTES_MIN

__all__ = ["ALGORITHMS", "Key", "KeySet", "load_keys", "make_key", "public_set", "save_keys"]

ALGORITHMS: Final[Mapping[str, tuple[str, str]]] = {
    "EdDSA": ("OKP", "Ed25519"),
    "ES256": ("EC", "P-256"),
    "RS256": ("RSA", ""),
    "HS256": ("oct", ""),
}
"""Algorithm → what its keys are."""

_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth"})


@dataclass(frozen=True, slots=True)
class Key:
    """One key; what it is made of is kept out of every repr and message."""

    kid: str
    algorithm: str
    checking: Any
    signing: Any

    def __repr__(self) -> str:
        return f"<key {self.kid!r} for {self.algorithm}{'' if self.signing is not None else ', public half'}>"


KeySet = Mapping[str, Key]


def load_keys(path: str | Path) -> KeySet:
    """The keys of a file by their kid; InvalidArgument names the file and what is wrong with which key."""
    return {key.kid: key for key in _keys_of(_read(Path(path)), str(path))}


def _read(path: Path) -> list[Any]:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > KEY_FILE_BYTES_MAX:
            raise InvalidArgument(f"key file {path} has {size_bytes} bytes; at most {KEY_FILE_BYTES_MAX} are read")
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InvalidArgument(f"key file {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"key file {path} is not JSON: {error}") from None
    keys = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(keys, list) or not keys:
        raise InvalidArgument(f'key file {path}: must be a JSON Web Key set, {{"keys": [{{"kid": …, "alg": …}}, …]}}')
    if len(keys) > KEYS_MAX:
        raise InvalidArgument(f"key file {path} has {len(keys)} keys; at most {KEYS_MAX} are allowed")
    return keys


def _keys_of(entries: list[Any], place: str) -> Iterator[Key]:
    seen: set[str] = set()
    for number, entry in enumerate(entries, 1):
        where = f"key file {place}, key {number}"
        if not isinstance(entry, dict):
            raise InvalidArgument(f"{where}: must be an object")
        kid, algorithm = entry.get("kid"), entry.get("alg")
        if not isinstance(kid, str) or not 0 < len(kid) <= KEY_ID_CHARACTERS_MAX:
            raise InvalidArgument(f"{where}: kid must be text of 1 to {KEY_ID_CHARACTERS_MAX} characters")
        if kid in seen:
            raise InvalidArgument(f"{where}: kid {kid!r} is there twice")
        seen.add(kid)
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise InvalidArgument(f"{where} ({kid!r}): alg is {algorithm!r}; it must be one of {', '.join(ALGORITHMS)}")
        kind, curve = ALGORITHMS[algorithm]
        if entry.get("kty") != kind or (curve and entry.get("crv") != curve):
            wanted = f"kty {kind}" + (f" and crv {curve}" if curve else "")
            raise InvalidArgument(f"{where} ({kid!r}): alg {algorithm} needs {wanted}")
        yield _key(kid, algorithm, entry, where)


def _key(kid: str, algorithm: str, entry: Mapping[str, Any], where: str) -> Key:
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    private = kind_is_secret(algorithm) or "d" in entry
    public = entry if kind_is_secret(algorithm) else {n: value for n, value in entry.items() if n not in _PRIVATE}
    try:
        checking = PyJWK(dict(public), algorithm).key
        signing = PyJWK(dict(entry), algorithm).key if private else None
    except (PyJWTError, ValueError, TypeError):  # what they say may quote the key
        raise InvalidArgument(f"{where} ({kid!r}): its members do not make a key for {algorithm}") from None
    if algorithm == "HS256" and len(checking) < SECRET_BYTES_MIN:
        raise InvalidArgument(f"{where} ({kid!r}): the secret has {len(checking)} bytes; at least {SECRET_BYTES_MIN}")
    if algorithm == "RS256" and checking.key_size < RSA_BITS_MIN:
        raise InvalidArgument(f"{where} ({kid!r}): {checking.key_size} bits; at least {RSA_BITS_MIN}")
    return Key(kid, algorithm, checking, signing)


def kind_is_secret(algorithm: str) -> bool:
    """Whether keys of this algorithm have no public half.

    >>> kind_is_secret("HS256"), kind_is_secret("EdDSA")
    (True, False)
    """
    return ALGORITHMS[algorithm][0] == "oct"


def make_key(algorithm: str, kid: str) -> dict[str, Any]:
    """A new key as a JSON Web Key, private half included."""
    if algorithm not in ALGORITHMS:
        raise InvalidArgument(f"algorithm {algorithm!r}: must be one of {', '.join(ALGORITHMS)}")
    if not 0 < len(kid) <= KEY_ID_CHARACTERS_MAX or not kid.isprintable():
        raise InvalidArgument(f"kid {kid!r}: must be 1 to {KEY_ID_CHARACTERS_MAX} printable characters")
    head = {"kid": kid, "alg": algorithm, "use": "sig"}
    if algorithm == "HS256":
        secret = base64.urlsafe_b64encode(secrets.token_bytes(SECRET_BYTES_MIN)).rstrip(b"=").decode()
        return {**head, "kty": "oct", "k": secret}
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

    if algorithm == "EdDSA":
        return {**OKPAlgorithm.to_jwk(ed25519.Ed25519PrivateKey.generate(), as_dict=True), **head}
    if algorithm == "ES256":
        return {**ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()), as_dict=True), **head}
    made = RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, RSA_BITS_MIN), as_dict=True)
    return {**made, **head}


def save_keys(path: str | Path, new: Mapping[str, Any]) -> int:
    """Add a key to a file (made if it is new, for its owner's eyes only); how many it holds now."""
    target = Path(path)
    entries = _read(target) if target.exists() else []
    entries = [*entries, dict(new)]
    list(_keys_of(entries, str(path)))
    save_private(target, {"keys": entries}, "key file")
    return len(entries)


def public_set(path: str | Path) -> bytes:
    """The same keys without anything that could sign: what a server that only checks needs."""
    entries = _read(Path(path))
    list(_keys_of(entries, str(path)))
    shared = [entry["kid"] for entry in entries if kind_is_secret(entry["alg"])]
    if shared:
        raise InvalidArgument(f"key {shared[0]!r} is a shared secret: it has no public half; use EdDSA, ES256 or RS256")
    stripped = [{name: value for name, value in entry.items() if name not in _PRIVATE} for entry in entries]
    return msgspec.json.format(msgspec.json.encode({"keys": stripped}), indent=2) + b"\n"
