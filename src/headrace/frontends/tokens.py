"""Tokens: who somebody is and what he may do, signed by a key the server knows.

A token is a JSON Web Token with these claims:

    iss, aud   as configured (``auth.issuer``, ``auth.audience``; both ``headrace`` unless told otherwise)
    exp        when it ends (and ``auth.leeway`` later); also for a connection that was opened before
    nbf        optional: not before
    sub        who it is; shown in logs, in traces as the consumer's principal, never interpolated into a rule
    headrace   what it may do, a list of grants:
               [{"verbs": ["publish", "consume", "admin"], "namespaces": ["team-a"], "topics": ["orders/#"]}]

A grant without ``namespaces`` is for ``default``, ``*`` stands for all; without ``topics`` it is for all topics.
``topics`` are patterns in MQTT's spelling. Rights add up over grants, never inside one check: one single grant must
allow the whole of what is asked. What is about no single topic (lists and figures of a namespace) needs the pattern
``#``.

Checked in this order: size, the header (``kid`` from our table, ``alg`` as that key's, no ``crit``), the signature,
then the claims. A token that passed is remembered by its hash until it ends; ``reload`` forgets all of them.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from headrace.clock import Clock, SystemClock
from headrace.config import AuthConfig
from headrace.errors import HeadraceError, InvalidArgument, NotAllowed, Unauthenticated
from headrace.frontends.access import VERBS, Verb
from headrace.frontends.keys import Key, KeySet, load_keys
from headrace.limits import SECOND_NS, TIME_NS_MAX, TOKEN_BYTES_MAX, TOKEN_GRANTS_MAX, TOKENS_REMEMBERED_MAX
from headrace.names import DEFAULT_NAMESPACE
from headrace.routing import TopicPatterns

__all__ = ["Grant", "TokenCheck", "TokenPrincipal", "make_token", "read_token"]

CLAIM: Final = "headrace"
ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class Grant:
    """One line of what somebody may do."""

    verbs: frozenset[str]
    namespaces: frozenset[str]
    topics: TopicPatterns

    def covers(self, verb: str, namespace: str) -> bool:
        return verb in self.verbs and (ANY in self.namespaces or namespace in self.namespaces)


class TokenPrincipal:
    """Somebody with a token that was good when he came; its end is looked at again with each thing he asks."""

    __slots__ = ("_clock", "_grants", "ends_at_ns", "name")

    def __init__(self, name: str, grants: Sequence[Grant], ends_at_ns: int, clock: Clock) -> None:
        self.name = name
        self.ends_at_ns = ends_at_ns
        self._grants = tuple(grants)
        self._clock = clock

    def refusal(self, verb: Verb, namespace: str, topic: str) -> HeadraceError | None:
        """Why he may not do this to a topic (an empty one: to all of them), or None."""
        return self._judge(verb, namespace, topic, is_filter=not topic)

    def filter_refusal(self, verb: Verb, namespace: str, topic_filter: str) -> HeadraceError | None:
        """The same for everything that an MQTT filter can match."""
        return self._judge(verb, namespace, topic_filter, is_filter=True)

    def _judge(self, verb: Verb, namespace: str, topic: str, *, is_filter: bool) -> HeadraceError | None:
        if self._clock.wall_ns() >= self.ends_at_ns:
            return Unauthenticated(f"the token of {self.name!r} ended at {_shown_time(self.ends_at_ns)}")
        for grant in self._grants:
            if grant.covers(verb, namespace):
                topics = grant.topics
                if topics.allows_filter(topic or "#") if is_filter else topics.allows_name(topic):
                    return None
        what = f"topic {topic!r} of namespace {namespace!r}" if topic else f"all topics of namespace {namespace!r}"
        return NotAllowed(f"the token of {self.name!r} does not allow {verb} on {what}")

    def reaches(self, namespace: str) -> bool:
        """Whether any grant is for this namespace."""
        return any(ANY in grant.namespaces or namespace in grant.namespaces for grant in self._grants)


class TokenCheck:
    """The one check behind every door (an ``Authenticate``): token and namespace in, principal out."""

    def __init__(self, config: AuthConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._keys: KeySet = _load(config)
        self._known: OrderedDict[bytes, TokenPrincipal] = OrderedDict()

    def reload(self) -> None:
        """Read the key file again; when there is something wrong with it the old keys stay and this raises."""
        self._keys = _load(self._config)
        self._known.clear()

    def __call__(self, token: str | None, namespace: str) -> TokenPrincipal:
        if not token:
            raise Unauthenticated("no token: this server needs one (`headrace token create` makes them)")
        principal = self.principal_of(token)
        if not principal.reaches(namespace):
            where = "all namespaces" if namespace == ANY else f"namespace {namespace!r}"
            raise NotAllowed(f"the token of {principal.name!r} is not for {where}")
        return principal

    def principal_of(self, token: str) -> TokenPrincipal:
        """Who a token is good for, whatever the namespace."""
        principal = self._found(token)
        if self._clock.wall_ns() >= principal.ends_at_ns:
            raise Unauthenticated(f"the token of {principal.name!r} ended at {_shown_time(principal.ends_at_ns)}")
        return principal

    def _found(self, token: str) -> TokenPrincipal:
        try:
            raw = token.encode("ascii")
        except UnicodeEncodeError:
            raise Unauthenticated("the token holds characters that no token has") from None
        if len(raw) > TOKEN_BYTES_MAX:
            raise Unauthenticated(f"the token has {len(raw)} bytes; at most {TOKEN_BYTES_MAX} are read")
        digest = hashlib.sha256(raw).digest()
        known = self._known.get(digest)
        if known is not None:
            self._known.move_to_end(digest)
            return known
        claims = _verified(token, self._keys, self._config)
        principal = _principal_of(claims, self._clock, self._config.leeway_ns)
        self._known[digest] = principal
        if len(self._known) > TOKENS_REMEMBERED_MAX:
            self._known.popitem(last=False)
        return principal


def _load(config: AuthConfig) -> KeySet:
    try:
        return load_keys(config.keys)
    except ModuleNotFoundError as error:
        raise InvalidArgument(f"auth.keys needs the package {error.name}: pip install 'headrace[http]'") from None


def _verified(token: str, keys: KeySet, config: AuthConfig) -> Mapping[str, Any]:
    """The claims of a token with a good signature, for us, from whom we trust."""
    import jwt

    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError):
        raise Unauthenticated("the token is not a JSON Web Token") from None
    key = _key_named(header, keys)
    try:
        return jwt.decode(
            token,
            key.checking,
            algorithms=[key.algorithm],
            audience=config.audience,
            issuer=config.issuer,
            options={
                "require": ["exp", "iss", "aud"],
                "verify_exp": False,  # against our own clock, below
                "verify_nbf": False,
                "verify_iat": False,
                "verify_sub": False,
                "verify_jti": False,
            },
        )
    except jwt.MissingRequiredClaimError as error:
        raise Unauthenticated(f"the token has no {error.claim}; it needs exp, iss and aud") from None
    except jwt.InvalidAudienceError:
        raise Unauthenticated(f"the token is for somebody else: its aud must be {config.audience!r}") from None
    except jwt.InvalidIssuerError:
        raise Unauthenticated(f"the token is from somebody else: its iss must be {config.issuer!r}") from None
    except (jwt.PyJWTError, ValueError, TypeError):
        raise Unauthenticated(f"the signature of the token does not fit key {key.kid!r}") from None


def _key_named(header: Mapping[str, Any], keys: KeySet) -> Key:
    if "crit" in header:
        raise Unauthenticated("the token demands extensions (crit) that are not known here")
    kid = header.get("kid")
    if kid is None and len(keys) == 1:
        key: Key | None = next(iter(keys.values()))
    else:
        key = keys.get(kid) if isinstance(kid, str) else None
    if key is None:
        raise Unauthenticated("the token names no key that is known here (kid)")
    if header.get("alg") != key.algorithm:
        raise Unauthenticated(f"the token says it is signed by another algorithm than key {key.kid!r} is for")
    return key


def _principal_of(claims: Mapping[str, Any], clock: Clock, leeway_ns: int) -> TokenPrincipal:
    ends_at_ns = _instant(claims, "exp")
    begins_at_ns = _instant(claims, "nbf") if "nbf" in claims else 0
    if clock.wall_ns() + leeway_ns < begins_at_ns:
        raise Unauthenticated(f"the token is not good before {_shown_time(begins_at_ns)}")
    name = claims.get("sub", "")
    if not isinstance(name, str) or not name.isprintable() or len(name) > 255:
        raise Unauthenticated("the sub of the token must be at most 255 printable characters")
    try:
        grants = grants_of(claims.get(CLAIM))
    except InvalidArgument as error:
        raise Unauthenticated(f"the token's claim {CLAIM}: {error.message}") from None
    return TokenPrincipal(name or "nameless", grants, ends_at_ns + leeway_ns, clock)


def _instant(claims: Mapping[str, Any], name: str) -> int:
    value = claims[name]
    if type(value) not in (int, float) or not 0 <= value <= TIME_NS_MAX / SECOND_NS:
        raise Unauthenticated(f"the {name} of the token must be seconds since 1970")
    return int(value * SECOND_NS)


def grants_of(claim: Any) -> list[Grant]:
    """The grants of a claim; InvalidArgument says what is wrong with it."""
    if not isinstance(claim, list) or not claim:
        raise InvalidArgument('must be a list of grants, such as [{"verbs": ["consume"], "topics": ["orders/#"]}]')
    if len(claim) > TOKEN_GRANTS_MAX:
        raise InvalidArgument(f"{len(claim)} grants; at most {TOKEN_GRANTS_MAX} are allowed")
    return [_grant(entry) for entry in claim]


def _grant(entry: Any) -> Grant:
    if not isinstance(entry, dict):
        raise InvalidArgument("a grant must be an object")
    unknown = sorted(set(map(str, entry)) - {"verbs", "namespaces", "topics"})
    if unknown:
        raise InvalidArgument(f"a grant has no {unknown[0]!r}; it has verbs, namespaces and topics")
    verbs = _texts(entry.get("verbs"), "verbs")
    wrong = [verb for verb in verbs if verb not in VERBS]
    if wrong:
        raise InvalidArgument(f"verb {wrong[0]!r}: there are {', '.join(VERBS)}")
    namespaces = _texts(entry.get("namespaces", [DEFAULT_NAMESPACE]), "namespaces")
    topics = _texts(entry.get("topics", ["#"]), "topics")
    return Grant(frozenset(verbs), frozenset(namespaces), TopicPatterns(topics))


def _texts(value: Any, what: str) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise InvalidArgument(f"{what} must be a list of texts, not empty")
    return cast("list[str]", value)


def _shown_time(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // SECOND_NS, UTC).isoformat().replace("+00:00", "Z")


# -- making and looking into -------------------------------------------------------------------------------------------


def make_token(
    key: Key,
    *,
    subject: str,
    grants: Iterable[Mapping[str, Any]],
    now_ns: int,
    ttl_ns: int,
    issuer: str,
    audience: str,
) -> str:
    """A signed token."""
    import jwt

    if key.signing is None:
        raise InvalidArgument(f"key {key.kid!r} is a public half: it can check tokens, not make them")
    claim = [dict(grant) for grant in grants]
    grants_of(claim)
    now_s = now_ns // SECOND_NS
    claims = {
        "iss": issuer,
        "aud": audience,
        "sub": subject,
        "iat": now_s,
        "exp": (now_ns + ttl_ns) // SECOND_NS,
        CLAIM: claim,
    }
    token = jwt.encode(claims, key.signing, algorithm=key.algorithm, headers={"kid": key.kid})
    if len(token) > TOKEN_BYTES_MAX:
        raise InvalidArgument(f"the token would have {len(token)} bytes; at most {TOKEN_BYTES_MAX} are read")
    return token


def read_token(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(header, claims) of a token as it says, nothing checked: for a person who looks at it."""
    import jwt

    try:
        header = jwt.get_unverified_header(token)
        claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError):
        raise InvalidArgument("this is not a JSON Web Token: three parts of base64 with dots between them") from None
    return header, claims
