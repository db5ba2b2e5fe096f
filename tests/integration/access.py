"""Tokens of all kinds, good and forged, and an oracle that says on its own what each of them may do."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jwt

from headrace.clock import SystemClock
from headrace.config import AuthConfig
from headrace.frontends.keys import ALGORITHMS, load_keys, make_key, save_keys
from headrace.frontends.tokens import TokenCheck, make_token

HOUR_NS = 3600 * 10**9

GRANTS: dict[str, list[dict[str, Any]]] = {
    "root": [{"verbs": ["publish", "consume", "admin"], "namespaces": ["*"]}],
    "admin of default": [{"verbs": ["publish", "consume", "admin"]}],
    "admin of team-b": [{"verbs": ["publish", "consume", "admin"], "namespaces": ["team-b"]}],
    "publisher of orders": [{"verbs": ["publish"], "topics": ["orders/#"]}],
    "consumer of orders": [{"verbs": ["consume"], "topics": ["orders/#"]}],
    "worker of orders": [{"verbs": ["publish", "consume"], "topics": ["orders/+"]}],
    "admin of orders": [{"verbs": ["admin"], "topics": ["orders/#"]}],
    "consumer of everything": [{"verbs": ["consume"]}],
    "consumer everywhere": [{"verbs": ["consume"], "namespaces": ["*"], "topics": ["orders/eu"]}],
    "two grants": [
        {"verbs": ["publish"], "topics": ["users"]},
        {"verbs": ["consume"], "namespaces": ["team-b"], "topics": ["users"]},
    ],
    "one exact topic": [{"verbs": ["publish", "consume", "admin"], "topics": ["orders/eu"]}],
    "a prefix that is none": [{"verbs": ["publish", "consume", "admin"], "topics": ["order", "orders/e", "user"]}],
}
"""Good tokens by who has them."""


def allowed(grants: Sequence[Mapping[str, Any]], verb: str, namespace: str, topic: str) -> bool:
    """What the page on security says, written a second time. An empty topic: all of them."""
    for grant in grants:
        namespaces = grant.get("namespaces", ["default"])
        if verb not in grant["verbs"] or not ({"*", namespace} & set(namespaces)):
            continue
        if any(_matches(pattern, topic) for pattern in grant.get("topics", ["#"])):
            return True
    return False


def _matches(pattern: str, topic: str) -> bool:
    if pattern == "#":
        return True
    if not topic:
        return False
    wanted, given = pattern.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted.pop()
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(w in ("+", g) for w, g in zip(wanted, given, strict=True))


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


class Tokens:
    """A key file with a key of each algorithm, and tokens."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "keys.json"
        for algorithm in ("EdDSA", "ES256", "HS256", "RS256"):
            save_keys(self.file, make_key(algorithm, algorithm))
        self.keys = load_keys(self.file)
        self.config = AuthConfig(keys=str(self.file))
        self.check = TokenCheck(self.config)
        self.good = {name: self.make(grants, subject=name) for name, grants in GRANTS.items()}
        self.bad = self._forged()

    def make(self, grants: Any, *, subject: str = "test", algorithm: str = "EdDSA", **names: str) -> str:
        given = {"issuer": "headrace", "audience": "headrace", **names}
        now_ns = SystemClock().wall_ns()
        return make_token(self.keys[algorithm], grants=grants, subject=subject, now_ns=now_ns, ttl_ns=HOUR_NS, **given)

    def sign(self, claims: Mapping[str, Any], header: Mapping[str, Any] | None = None) -> str:
        now_s = int(time.time())
        whole = {"iss": "headrace", "aud": "headrace", "exp": now_s + 600, "headrace": GRANTS["root"], **claims}
        whole = {name: value for name, value in whole.items() if value is not None}
        return jwt.encode(whole, self.keys["EdDSA"].signing, "EdDSA", headers={"kid": "EdDSA", **(header or {})})

    def _forged(self) -> dict[str, str | None]:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        now_s = int(time.time())
        root = self.good["root"]
        head, claims, signature = root.split(".")
        public = self.keys["RS256"].checking.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        confused = f"{part({'alg': 'HS256', 'kid': 'RS256'})}.{claims}"
        mac = base64.urlsafe_b64encode(hmac.new(public, confused.encode(), hashlib.sha256).digest()).rstrip(b"=")
        wider = json.loads(base64.urlsafe_b64decode(self.good["publisher of orders"].split(".")[1] + "=="))
        wider["headrace"] = GRANTS["root"]
        stranger = make_key("EdDSA", "EdDSA")
        other = jwt.encode(
            {"iss": "headrace", "aud": "headrace", "exp": now_s + 600, "headrace": GRANTS["root"]},
            jwt.PyJWK(stranger, "EdDSA").key,
            "EdDSA",
            headers={"kid": "EdDSA"},
        )
        return {
            "none": None,
            "garbage": "not-a-token",
            "alg none": f"{part({'alg': 'none', 'kid': 'EdDSA'})}.{claims}.",
            "RS as HS": f"{confused}.{mac.decode()}",
            "signature cut": f"{head}.{claims}.{signature[:-8]}",
            "claims exchanged": f"{head}.{part(wider)}.{signature}",
            "a stranger's key": other,
            "unknown kid": self.sign({}, {"kid": "nobody"}),
            "unknown crit": self.sign({}, {"crit": ["exp2"], "exp2": 1}),
            "expired": self.sign({"exp": now_s - 3600}),
            "not yet": self.sign({"nbf": now_s + 3600}),
            "no exp": self.sign({"exp": None}),
            "another audience": self.sign({"aud": "billing"}),
            "another issuer": self.sign({"iss": "somebody"}),
            "no grants": self.sign({"headrace": []}),
            "algorithm of another key": root.replace(head, part({"alg": "ES256", "kid": "EdDSA", "typ": "JWT"}), 1),
        }


assert set(ALGORITHMS) == {"EdDSA", "ES256", "HS256", "RS256"}
