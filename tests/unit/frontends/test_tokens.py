"""Tokens: what lets somebody in, what does not, and what he may do then."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest

from headrace.clock import ManualClock
from headrace.config import AuthConfig
from headrace.errors import HeadraceError, InvalidArgument, NotAllowed, Unauthenticated
from headrace.frontends import guard_call, tokens
from headrace.frontends.keys import ALGORITHMS, load_keys, make_key, public_set, save_keys
from headrace.frontends.tokens import TokenCheck, make_token, read_token
from headrace.limits import SECOND_NS, TOKEN_BYTES_MAX

HOUR_NS = 3600 * SECOND_NS
CONSUME = [{"verbs": ["consume"], "topics": ["orders/#"]}]


@functools.cache
def _key(algorithm: str) -> dict[str, Any]:
    return make_key(algorithm, algorithm)


class Site:
    """A key file, a clock, the server's check, and a hand that signs."""

    def __init__(self, directory: Path, *, leeway_ns: int = 0) -> None:
        self.file = directory / "keys.json"
        for algorithm in ALGORITHMS:
            save_keys(self.file, _key(algorithm))
        self.keys = load_keys(self.file)
        self.clock = ManualClock()
        self.check = TokenCheck(AuthConfig(keys=str(self.file), leeway_ns=leeway_ns), self.clock)

    def token(self, algorithm: str = "EdDSA", grants: Any = CONSUME, ttl_ns: int = HOUR_NS, **claims: str) -> str:
        names = {"issuer": "headrace", "audience": "headrace", "subject": "billing", **claims}
        key = self.keys[algorithm]
        return make_token(key, grants=grants, now_ns=self.clock.wall_ns(), ttl_ns=ttl_ns, **names)

    def signed(self, claims: dict[str, Any], header: dict[str, Any] | None = None, algorithm: str = "EdDSA") -> str:
        now_s = self.clock.wall_ns() // SECOND_NS
        whole = {"iss": "headrace", "aud": "headrace", "exp": now_s + 60, "sub": "x", "headrace": CONSUME, **claims}
        whole = {name: value for name, value in whole.items() if value is not None}
        key = self.keys[algorithm].signing
        return jwt.encode(whole, key, algorithm, headers={"kid": algorithm, **(header or {})})

    def refused(self, token: str | None, namespace: str = "default") -> HeadraceError:
        with pytest.raises(HeadraceError) as refused:
            self.check(token, namespace)
        if token:
            assert token not in refused.value.message
        return refused.value


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.feature("F161")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_of_each_algorithm_lets_in(site: Site, algorithm: str) -> None:
    principal = site.check(site.token(algorithm), "default")
    assert principal.name == "billing"
    assert principal.refusal("consume", "default", "orders/eu") is None


def test_without_a_token_nobody_comes_in(site: Site) -> None:
    for nothing in (None, ""):
        assert isinstance(site.refused(nothing), Unauthenticated)


def test_garbage_is_no_token(site: Site) -> None:
    for garbage in ("x", "a.b.c", "…", "." * 50, "e30.e30.", "\x00", "A" * (TOKEN_BYTES_MAX + 1)):
        assert isinstance(site.refused(garbage), Unauthenticated), garbage


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_no_algorithm_is_no_signature(site: Site) -> None:
    claims = site.token().split(".")[1]
    for name in ("none", "None", "NONE", "nOnE", ""):
        for kid in ("EdDSA", "HS256"):
            forged = f"{_part({'alg': name, 'kid': kid})}.{claims}."
            assert "another algorithm" in site.refused(forged).message


@pytest.mark.parametrize("algorithm", ["EdDSA", "ES256", "RS256"])
def test_a_public_key_is_no_shared_secret(site: Site, algorithm: str) -> None:
    """The classic confusion: sign with HMAC, using as secret what everybody may know."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = load_keys(site.file)[algorithm].checking
    claims = site.token(algorithm).split(".")[1]
    for secret in (
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    ):
        for kid in (algorithm, "HS256"):
            signed = f"{_part({'alg': 'HS256', 'kid': kid, 'typ': 'JWT'})}.{claims}"
            mac = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
            forged = f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
            assert isinstance(site.refused(forged), Unauthenticated)


def test_a_changed_token_is_refused(site: Site) -> None:
    head, claims, signature = site.token().split(".")
    other = _part({**json.loads(base64.urlsafe_b64decode(claims + "==")), "sub": "root"})
    assert "signature" in site.refused(f"{head}.{other}.{signature}").message
    assert "signature" in site.refused(f"{head}.{claims}.{signature[:-4]}AAAA").message
    assert "signature" in site.refused(f"{head}.{claims}.").message


def test_keys_are_looked_up_and_not_followed(site: Site) -> None:
    for kid in ("../../etc/passwd", "http://localhost/keys", "", 7, None, ["EdDSA"]):
        assert isinstance(site.refused(f"{_part({'alg': 'EdDSA', 'kid': kid})}.{_part({})}.AAAA"), Unauthenticated)
    claims = {"jwk": {"kty": "oct", "k": "AAAA"}, "jku": "http://localhost/keys", "x5u": "http://localhost"}
    site.check(site.signed({}, claims), "default")  # what a token says of keys is not looked at


def test_critical_extensions_are_refused(site: Site) -> None:
    assert "crit" in site.refused(site.signed({}, {"crit": ["b64"], "b64": False})).message
    assert isinstance(site.refused(site.signed({}, {"crit": []})), Unauthenticated)


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"exp": None}, "no exp"),
        ({"iss": None}, "no iss"),
        ({"aud": None}, "no aud"),
        ({"aud": "another"}, "aud"),
        ({"aud": ["another", "third"]}, "aud"),
        ({"iss": "somebody"}, "iss"),
        ({"exp": True}, "exp"),
        ({"exp": 1e300}, "exp"),
        ({"exp": -1}, "exp"),
        ({"nbf": "later"}, "nbf"),
        ({"sub": 7}, "sub"),
        ({"sub": "a\nb"}, "sub"),
        ({"sub": "x" * 256}, "sub"),
        ({"headrace": None}, "grants"),
        ({"headrace": []}, "grants"),
        ({"headrace": "admin"}, "grants"),
        ({"headrace": ["admin"]}, "object"),
        ({"headrace": [{"verbs": []}]}, "verbs"),
        ({"headrace": [{"verbs": "admin"}]}, "verbs"),
        ({"headrace": [{"verbs": ["root"]}]}, "there are publish, consume, admin"),
        ({"headrace": [{"verbs": ["consume"], "topics": ["or#"]}]}, "must fill its whole level"),
        ({"headrace": [{"verbs": ["consume"], "topics": []}]}, "topics"),
        ({"headrace": [{"verbs": ["consume"], "namespaces": []}]}, "namespaces"),
        ({"headrace": [{"verbs": ["consume"], "topic": ["x"]}]}, "no 'topic'"),
        ({"headrace": [{"verbs": ["consume"]}] * 65}, "at most 64"),
    ],
)
def test_what_a_token_must_say(site: Site, claims: dict[str, Any], says: str) -> None:
    refusal = site.refused(site.signed(claims))
    assert isinstance(refusal, Unauthenticated)
    assert says in refusal.message


def test_a_token_may_be_for_several(site: Site) -> None:
    site.check(site.signed({"aud": ["another", "headrace"]}), "default")


def test_a_token_ends_also_for_those_who_came_in_before(site: Site) -> None:
    token = site.token(ttl_ns=HOUR_NS)
    principal = site.check(token, "default")
    site.clock.advance(HOUR_NS - SECOND_NS)
    assert principal.refusal("consume", "default", "orders/1") is None
    site.clock.advance(SECOND_NS)
    assert isinstance(principal.refusal("consume", "default", "orders/1"), Unauthenticated)
    assert "ended at" in site.refused(token).message


def test_leeway_is_for_clocks_that_differ(tmp_path: Path) -> None:
    site = Site(tmp_path, leeway_ns=30 * SECOND_NS)
    token = site.token(ttl_ns=SECOND_NS)
    site.clock.advance(30 * SECOND_NS)
    site.check(token, "default")
    site.clock.advance(SECOND_NS)
    site.refused(token)
    now_s = site.clock.wall_ns() // SECOND_NS
    site.check(site.signed({"nbf": now_s + 30}), "default")
    assert "not good before" in site.refused(site.signed({"nbf": now_s + 31})).message


@pytest.mark.feature("F159")
def test_a_token_is_for_its_namespaces(site: Site) -> None:
    team = site.token(grants=[{"verbs": ["publish"], "namespaces": ["team-a"]}])
    assert isinstance(site.refused(team, "default"), NotAllowed)
    principal = site.check(team, "team-a")
    assert principal.refusal("publish", "team-a", "x") is None
    assert isinstance(principal.refusal("publish", "team-b", "x"), NotAllowed)
    everywhere = site.check(site.token(grants=[{"verbs": ["publish"], "namespaces": ["*"]}]), "anything")
    assert everywhere.refusal("publish", "team-b", "x") is None


def test_rights_are_by_verb_and_topic(site: Site) -> None:
    grants = [{"verbs": ["publish"], "topics": ["in/+"]}, {"verbs": ["consume"], "topics": ["out/#", "exact"]}]
    may = site.check(site.token(grants=grants), "default").refusal
    allowed = [("publish", "in/1"), ("consume", "out"), ("consume", "out/a/b"), ("consume", "exact")]
    denied = [("publish", "in"), ("publish", "in/1/2"), ("publish", "out/1"), ("consume", "in/1"), ("admin", "out/1")]
    denied += [("consume", "exact/1"), ("consume", "#"), ("publish", "+"), ("consume", "")]
    for verb, topic in allowed:
        assert may(verb, "default", topic) is None, (verb, topic)  # type: ignore[arg-type]
    for verb, topic in denied:
        assert isinstance(may(verb, "default", topic), NotAllowed), (verb, topic)  # type: ignore[arg-type]


def test_a_filter_must_lie_inside_what_is_allowed(site: Site) -> None:
    may = site.check(site.token(grants=CONSUME), "default").filter_refusal
    for inside in ("orders", "orders/#", "orders/+", "orders/eu", "$share/g/orders/eu"):
        assert may("consume", "default", inside) is None, inside
    for outside in ("#", "+/eu", "+/#", "$share/g/#", "$share/g/secret/#", "$SYS/#"):
        assert isinstance(may("consume", "default", outside), NotAllowed), outside


async def test_calls_need_the_right_for_what_they_touch(site: Site) -> None:
    async def topic_of(namespace: str, message_id: int) -> str | None:
        return "orders/eu" if (namespace, message_id) == ("default", 7) else None

    async def may(grants: Any, method: str, **arguments: Any) -> bool:
        principal = site.check(site.token(grants=grants), "default")
        try:
            await guard_call(principal, method, {"namespace": "default", **arguments}, topic_of)
        except NotAllowed:
            return False
        return True

    admin = [{"verbs": ["admin"], "topics": ["orders/#"]}]
    assert await may(CONSUME, "browse", topic="orders/eu")
    assert await may(CONSUME, "trace", id=7)
    assert not await may(CONSUME, "trace", id=8)
    assert not await may(CONSUME, "topic.delete", topic="orders/eu")
    assert await may(admin, "topic.delete", topic="orders/eu")
    assert not await may(admin, "topic.delete", topic="users")
    assert not await may(CONSUME, "topic.list")
    assert await may([{"verbs": ["consume"]}], "topic.list")
    assert not await may([{"verbs": ["consume"]}], "topic.list", namespace=None)
    assert await may([{"verbs": ["consume"], "namespaces": ["*", "default"]}], "topic.list", namespace=None)
    assert await may(admin, "dlq.redrive", topic="orders/eu")
    assert not await may(admin, "dlq.redrive", topic="orders/eu", to="orders/us")
    both = [{"verbs": ["admin", "publish"], "topics": ["orders/#"]}]
    assert await may(both, "dlq.redrive", topic="orders/eu", to="orders/us")
    assert not await may(both, "dlq.redrive", topic="orders/eu", to="users")
    assert not await may(admin, "call.nobody.knows", topic="users")


def test_keys_are_exchanged_without_a_restart(site: Site) -> None:
    old, new = site.token(), site.token("ES256")
    site.check(old, "default")
    keys = json.loads(site.file.read_text())["keys"]
    site.file.write_text(json.dumps({"keys": [key for key in keys if key["kid"] != "EdDSA"]}))
    site.check(old, "default")
    site.check.reload()
    assert "no key that is known" in site.refused(old).message
    site.check(new, "default")
    site.file.write_text("{}")
    with pytest.raises(InvalidArgument, match="must be a JSON Web Key set"):
        site.check.reload()
    site.check(new, "default")  # the keys of before stay


def test_a_check_is_remembered_within_a_bound(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = 0
    real = jwt.decode

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal checks
        checks += 1
        return real(*args, **kwargs)

    monkeypatch.setattr(jwt, "decode", counted)
    token = site.token("HS256")
    for _ in range(3):
        site.check(token, "default")
    assert checks == 1
    monkeypatch.setattr(tokens, "TOKENS_REMEMBERED_MAX", 8)
    for number in range(8):
        site.check(site.token("HS256", subject=str(number)), "default")
    site.check(token, "default")
    assert checks == 10


# -- key files ---------------------------------------------------------------------------------------------------------


def test_a_key_file_is_for_its_owner(site: Site) -> None:
    assert site.file.stat().st_mode & 0o077 == 0


def test_the_public_half_checks_and_cannot_sign(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no public half"):
        public_set(site.file)
    own = tmp_path / "own.json"
    for algorithm in ("EdDSA", "ES256", "RS256"):
        save_keys(own, _key(algorithm))
    shared = tmp_path / "public.json"
    shared.write_bytes(public_set(own))
    assert not {"d", "p", "q", "dp", "dq", "qi", "k"} & {n for k in json.loads(shared.read_text())["keys"] for n in k}
    check = TokenCheck(AuthConfig(keys=str(shared)), site.clock)
    now_ns = site.clock.wall_ns()
    names = {"subject": "x", "issuer": "headrace", "audience": "headrace"}
    for kid, key in load_keys(own).items():
        check(make_token(key, grants=CONSUME, now_ns=now_ns, ttl_ns=HOUR_NS, **names), "default")
        with pytest.raises(InvalidArgument, match="public half"):
            make_token(load_keys(shared)[kid], grants=CONSUME, now_ns=now_ns, ttl_ns=HOUR_NS, **names)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not JSON"),
        ("[]", "Web Key set"),
        ('{"keys": []}', "Web Key set"),
        ('{"keys": [7]}', "must be an object"),
        ('{"keys": [{"kid": "a"}]}', "alg is None"),
        ('{"keys": [{"kid": "a", "alg": "none", "kty": "oct", "k": ""}]}', "alg is 'none'"),
        ('{"keys": [{"kid": "a", "alg": ["HS256"]}]}', "alg is"),
        ('{"keys": [{"alg": "HS256", "kty": "oct", "k": "AAAA"}]}', "kid must be"),
        ('{"keys": [{"kid": "a", "alg": "HS256", "kty": "RSA"}]}', "needs kty oct"),
        ('{"keys": [{"kid": "a", "alg": "EdDSA", "kty": "OKP", "crv": "X25519"}]}', "crv Ed25519"),
        ('{"keys": [{"kid": "a", "alg": "HS256", "kty": "oct", "k": "c2hvcnQ"}]}', "at least 32"),
        ('{"keys": [{"kid": "a", "alg": "EdDSA", "kty": "OKP", "crv": "Ed25519", "x": "?"}]}', "do not make a key"),
    ],
)
def test_what_is_wrong_with_a_key_file_is_said(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(content)
    with pytest.raises(InvalidArgument) as refused:
        load_keys(file)
    assert says in refused.value.message
    assert str(file) in refused.value.message
    assert "c2hvcnQ" not in refused.value.message


def test_a_kid_is_there_once(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    save_keys(file, make_key("HS256", "a"))
    with pytest.raises(InvalidArgument, match="twice"):
        save_keys(file, make_key("HS256", "a"))
    assert len(load_keys(file)) == 1
    with pytest.raises(InvalidArgument, match="No such file"):
        load_keys(tmp_path / "missing.json")


def test_a_key_shows_nothing_of_itself(site: Site) -> None:
    for entry in json.loads(site.file.read_text())["keys"]:
        shown = repr(load_keys(site.file)[entry["kid"]])
        assert not any(len(str(value)) > 20 and str(value) in shown for value in entry.values())


def test_what_a_token_says_can_be_looked_at(site: Site) -> None:
    header, claims = read_token(site.token())
    assert header["kid"] == "EdDSA"
    assert claims["headrace"] == CONSUME
    with pytest.raises(InvalidArgument, match="not a JSON Web Token"):
        read_token("nonsense")
