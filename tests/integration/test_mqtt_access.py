"""Who may come in by MQTT and what he may do there: tokens, passwords, certificates, every pattern from every side."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.clock import SystemClock
from headrace.config import AuthConfig, TlsConfig
from headrace.errors import InvalidArgument
from headrace.frontends import server_context
from headrace.frontends.keys import load_keys, make_key, save_keys
from headrace.frontends.mqtt import MqttDoor
from headrace.frontends.passwords import PasswordCheck, hash_password, no_tokens, save_user
from headrace.frontends.tokens import TokenCheck, make_token
from headrace.wire.mqtt import Connect, Disconnect, PubAck, Publish, SubAck, Subscribe, Subscription, Will
from integration.mqtt_peer import OpenDoor, Peer, close_door, door_in_memory
from integration.test_server_process import certificate

NOT_AUTHORIZED = 0x87
BAD_PASSWORD = 0x86
HOUR_NS = 3600 * 10**9


class Issuer:
    """Makes keys in a file, and tokens."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "keys.json"
        save_keys(self.path, make_key("HS256", "k1"))
        self.config = AuthConfig(keys=str(self.path))

    def check(self) -> TokenCheck:
        return TokenCheck(self.config)

    def token(self, *grants: dict[str, Any], subject: str = "ann", ttl_ns: int = HOUR_NS) -> bytes:
        key = list(load_keys(self.path).values())[-1]
        return make_token(
            key,
            subject=subject,
            grants=grants,
            now_ns=SystemClock().wall_ns(),
            ttl_ns=ttl_ns,
            issuer="headrace",
            audience="headrace",
        ).encode()


@pytest.fixture
async def open_door() -> AsyncIterator[OpenDoor]:
    opened: list[MqttDoor] = []

    async def open_one(**options: object) -> MqttDoor:
        opened.append(await door_in_memory(**options))
        return opened[-1]

    yield open_one
    for door in opened:
        await close_door(door)


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


@pytest.fixture
async def address(open_door: OpenDoor, issuer: Issuer) -> str:
    return (await open_door(authenticate=issuer.check())).address


# -- the matrix --------------------------------------------------------------------------------------------------------

# pattern → (filters it allows, filters it refuses, names it allows, names it refuses)
MATRIX: dict[str, tuple[list[str], list[str], list[str], list[str]]] = {
    "sensors/attic/#": (
        ["sensors/attic/#", "sensors/attic", "sensors/attic/t", "sensors/attic/+", "$share/g/sensors/attic/+/x"],
        ["#", "+", "+/#", "sensors/#", "sensors/+", "sensors/+/t", "+/attic/#", "sensors/attic2/#", "/sensors/attic/#"],
        ["sensors/attic", "sensors/attic/t", "sensors/attic/a/b"],
        ["sensors", "sensors/attic2", "sensors/cellar/t", "Sensors/attic/t", "/sensors/attic/t", "attic/t"],
    ),
    "devices/+/state": (
        ["devices/+/state", "devices/7/state", "$share/g/devices/+/state"],
        [
            "devices/#",
            "devices/+/#",
            "devices/+/+",
            "devices/7/+",
            "+/+/state",
            "devices/7/state/#",
            "$share/g/devices/#",
        ],
        ["devices/7/state", "devices//state"],
        ["devices/7", "devices/7/state/x", "devices/7/config", "devices/state", "x/devices/7/state"],
    ),
    "orders": (
        ["orders", "$share/g/orders"],
        ["#", "+", "orders/#", "orders/+", "order", "ordersx", "$share/g/+", "$share/orders/#", "$share/orders/secret"],
        ["orders"],
        ["orders/1", "order", "Orders", "/orders", "orders/"],
    ),
    "+/public/#": (
        ["a/public/#", "+/public/x", "+/public/#", "$share/g/+/public/+"],
        ["+/#", "+/+/x", "#", "public/#", "a/+/public/#", "a/private/#", "$share/g/+/+/#"],
        ["a/public", "b/public/x/y"],
        ["public/x", "a/private", "a/b/public/x"],
    ),
}


def _cases() -> Iterator[Any]:
    for pattern, (good_filters, bad_filters, good_names, bad_names) in MATRIX.items():
        for names, is_allowed in ((good_filters, True), (bad_filters, False)):
            for name in names:
                yield pattern, "subscribe", name, is_allowed
        for names, is_allowed in ((good_names, True), (bad_names, False)):
            for name in names:
                for action in ("publish", "retain", "will", "will to a queue", "publish to a queue", "consume a queue"):
                    if action.endswith("queue") and (name.startswith("/") or name.endswith("/") or "//" in name):
                        continue  # no name of a queue
                    yield pattern, action, name, is_allowed


CASES = list(_cases())


def test_the_matrix_is_large_enough() -> None:
    assert len(CASES) >= 150


@pytest.mark.parametrize("pattern", MATRIX)
async def test_a_pattern_allows_what_it_covers_and_nothing_else(address: str, issuer: Issuer, pattern: str) -> None:
    token = issuer.token({"verbs": ["publish", "consume"], "topics": [pattern]})
    for _, action, name, is_allowed in (case for case in CASES if case[0] == pattern):
        reason = await outcome(address, token, action, name)
        assert (reason < 0x80) is is_allowed, (action, name, hex(reason))
        assert is_allowed or reason == NOT_AUTHORIZED, (action, name, hex(reason))


async def outcome(address: str, token: bytes, action: str, name: str) -> int:
    """The reason code of one attempt, on a connection of its own."""
    will = None
    if action.startswith("will"):
        will = Will(f"$queue/{name}" if action.endswith("queue") else name, b"x", 1)
    peer = await Peer.connect(address, password=token, user_name="any", will=will)
    assert peer.connack is not None
    try:
        if peer.connack.reason or will is not None:
            return peer.connack.reason
        if action == "subscribe":
            return (await peer.subscribe(name, 1)).reasons[0]
        if action == "consume a queue":
            return (await peer.subscribe(f"$queue/{name}", 1)).reasons[0]
        topic = f"$queue/{name}" if action.endswith("queue") else name
        answer = await peer.publish(topic, b"x", 1, retain=action == "retain")
        assert isinstance(answer, PubAck)
        return answer.reason
    finally:
        await peer.close()


@pytest.mark.parametrize(
    ("verbs", "may_publish", "may_subscribe", "may_administer"),
    [
        (["publish"], True, False, False),
        (["consume"], False, True, False),
        (["admin"], False, False, True),
        (["publish", "consume"], True, True, False),
    ],
)
async def test_each_verb_allows_its_own(
    address: str, issuer: Issuer, verbs: list[str], may_publish: bool, may_subscribe: bool, may_administer: bool
) -> None:
    token = issuer.token({"verbs": verbs, "topics": ["#"]})
    for action in ("publish", "publish to a queue", "retain", "will"):
        assert (await outcome(address, token, action, "t") < 0x80) is may_publish, action
    for action in ("subscribe", "consume a queue"):
        assert (await outcome(address, token, action, "t") < 0x80) is may_subscribe, action
    peer = await Peer.connect(address, password=token, user_name="any")
    for topic, body in (("$admin/queue/create", b'{"topic": "q"}'), ("$admin/queue/q/config", b'{"lease": "1m"}')):
        answer = await peer.publish(topic, body, 1)
        assert isinstance(answer, PubAck)
        assert (answer.reason < 0x80) is may_administer
        assert may_administer or answer.reason == NOT_AUTHORIZED
    reason = (await peer.subscribe("$admin/queue/q/stats", 0)).reasons[0]
    assert (reason < 0x80) is may_administer


@pytest.mark.parametrize(
    "name", ["$SYS/x", "$queue", "$queue/", "$queue/+", "$queue/#", "$admin/#", "$share/g/$queue/q"]
)
async def test_names_with_a_dollar_are_no_way_around(address: str, issuer: Issuer, name: str) -> None:
    token = issuer.token({"verbs": ["publish", "consume"], "topics": ["#"]})
    assert await outcome(address, token, "subscribe", name) >= 0x80
    if "+" not in name and "#" not in name:
        assert await outcome(address, token, "publish", name) >= 0x80
        assert await outcome(address, token, "will", name) >= 0x80


async def test_settling_needs_the_right_to_consume_that_queue(address: str, issuer: Issuer) -> None:
    worker = await Peer.connect(
        address, "w-1", password=issuer.token({"verbs": ["publish", "consume"], "topics": ["jobs"]}), user_name="x"
    )
    await worker.subscribe("$queue/jobs", 1)
    await worker.publish("$queue/jobs", b"1", 1)
    said = dict(((await worker.message()).properties or {})["user_properties"])
    other = await Peer.connect(
        address, "o-1", password=issuer.token({"verbs": ["publish"], "topics": ["#"]}, subject="bob"), user_name="x"
    )
    for verb in ("ack", "nack", "reject", "release", "extend"):
        answer = await other.publish(f"$queue/jobs/$group/w/${verb}/{said['message-id']}", b"", 1)
        assert isinstance(answer, PubAck)
        assert answer.reason == NOT_AUTHORIZED


async def test_a_refused_publish_ends_a_3_1_1_connection_which_has_no_word_for_it(address: str, issuer: Issuer) -> None:
    token = issuer.token({"verbs": ["consume"], "topics": ["#"]})
    peer = await Peer.connect(address, "old", 4, password=token, user_name="x")
    peer.send(Publish("t", b"x", 1, packet_id=1))
    assert await peer.ended() == []
    peer = await Peer.connect(address, "old", 4, password=issuer.token({"verbs": ["publish"]}), user_name="x")
    assert (await peer.subscribe("#", 1)).reasons == (0x80,)


# -- coming in ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("password", [None, b"", b"nonsense", b"eyJ.eyJ.sig", b"\xff\xfe", b"x" * 20_000])
async def test_without_a_good_token_nobody_comes_in(address: str, password: bytes | None) -> None:
    peer = await Peer.connect(address, "a", user_name="x" if password is not None else None, password=password)
    assert peer.connack is not None
    assert peer.connack.reason in (NOT_AUTHORIZED, BAD_PASSWORD)
    await peer.ended()


async def test_a_connection_ends_with_its_token(address: str, issuer: Issuer) -> None:
    token = issuer.token({"verbs": ["consume"]}, ttl_ns=2 * 10**9)
    peer = await Peer.connect(address, "short", password=token, user_name="x")
    assert peer.connack is not None
    assert peer.connack.reason == 0
    (last,) = await peer.ended()
    assert isinstance(last, Disconnect)
    assert last.reason == NOT_AUTHORIZED


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users.json"
    grant = {"verbs": ["publish", "consume"], "topics": ["sensors/#"]}
    save_user(path, {"name": "ann", "password": hash_password(b"secret"), "grants": [grant]})
    save_user(path, {"name": "bob", "password": hash_password(b"hidden"), "grants": [grant]})
    save_user(path, {"name": "device-7", "certificate": True, "grants": [grant]})
    return path


async def test_users_come_in_with_their_password(open_door: OpenDoor, users: Path) -> None:
    door = await open_door(passwords=PasswordCheck(users), authenticate=no_tokens)
    tries = [
        ("ann", b"secret"),
        ("ann", b"secret"),
        ("ann", b"wrong"),
        ("nobody", b"secret"),
        ("ann", b""),
        ("ann", None),
    ]
    reasons = []
    for name, password in tries:
        peer = await Peer.connect(door.address, "a", user_name=name, password=password)
        assert peer.connack is not None
        reasons.append(peer.connack.reason)
        await peer.close()
    assert reasons[:2] == [0, 0]
    assert all(reason in (NOT_AUTHORIZED, BAD_PASSWORD) for reason in reasons[2:])


async def test_a_user_may_do_what_his_grants_say(open_door: OpenDoor, users: Path) -> None:
    door = await open_door(passwords=PasswordCheck(users), authenticate=no_tokens)
    peer = await Peer.connect(door.address, "a", user_name="ann", password=b"secret")
    assert (await peer.subscribe("sensors/#", 1)).reasons == (1,)
    assert (await peer.subscribe("#", 1)).reasons == (NOT_AUTHORIZED,)


async def test_a_client_id_belongs_to_who_had_it_first(open_door: OpenDoor, users: Path, issuer: Issuer) -> None:
    door = await open_door(passwords=PasswordCheck(users), authenticate=issuer.check())
    ann = await Peer.connect(
        door.address, "shared-id", user_name="ann", password=b"secret", session_expiry_interval=3600
    )
    await ann.subscribe("sensors/#", 1)
    token = issuer.token({"verbs": ["consume"]}, subject="ann")  # of the same name, and somebody else
    for name, password in (("bob", b"hidden"), ("ann", token)):
        for is_clean in (True, False):
            peer = await Peer.connect(
                door.address, "shared-id", user_name=name, password=password, clean_start=is_clean
            )
            assert peer.connack is not None
            assert peer.connack.reason == NOT_AUTHORIZED
    await ann.nothing()
    await ann.close()
    peer = await Peer.connect(door.address, "shared-id", user_name="bob", password=b"hidden")
    assert peer.connack is not None
    assert peer.connack.reason == NOT_AUTHORIZED  # also while ann is away
    again = await Peer.connect(
        door.address, "shared-id", user_name="ann", password=b"secret", clean_start=False, session_expiry_interval=9
    )
    assert again.connack is not None
    assert again.connack.session_present


async def test_many_wrong_passwords_at_once_keep_nobody_else_waiting_for_long(open_door: OpenDoor, users: Path) -> None:
    """Checks are bounded: what is too much is refused at once, and who is known is let in at once."""
    door = await open_door(passwords=PasswordCheck(users), authenticate=no_tokens)
    first = await Peer.connect(door.address, "a", user_name="ann", password=b"secret")
    assert first.connack is not None
    crowd = [await Peer.open(door.address) for _ in range(100)]
    for number, peer in enumerate(crowd):
        peer.send(Connect(f"c{number}", 5, True, 0, "ann", b"wrong %d" % number))
    known = await Peer.connect(door.address, "b", user_name="ann", password=b"secret")
    assert known.connack is not None
    assert known.connack.reason == 0
    reasons = [getattr((await peer.ended())[0], "reason", 0) for peer in crowd]
    assert all(reason >= 0x80 for reason in reasons)


async def test_a_reload_takes_away_what_is_not_allowed_any_more(open_door: OpenDoor, users: Path) -> None:
    passwords = PasswordCheck(users)
    door = await open_door(passwords=passwords, authenticate=no_tokens)
    ann = await Peer.connect(door.address, "ann-1", user_name="ann", password=b"secret")
    await ann.subscribe("sensors/a", 1)
    await ann.subscribe("sensors/b", 1)
    await ann.subscribe("$queue/sensors/q", 1)
    bob = await Peer.connect(
        door.address, "bob-1", user_name="bob", password=b"hidden", will=Will("sensors/b", b"bob is gone", 1)
    )
    watcher = await Peer.connect(door.address, "w", user_name="ann", password=b"secret")
    await watcher.subscribe("sensors/b", 1)
    entry = passwords.entry_of("ann")
    grant = {"verbs": ["publish", "consume"], "topics": ["sensors/b"]}
    save_user(users, {"name": "ann", "password": entry, "grants": [grant]})
    save_user(users, {"name": "bob", "password": hash_password(b"another"), "grants": [grant]})
    passwords.reload()
    door.reload()
    (last,) = await bob.ended()
    assert isinstance(last, Disconnect)
    assert last.reason == NOT_AUTHORIZED
    assert (await watcher.message()).payload == b"bob is gone"  # to a topic of his, by the rights he has now
    assert (await ann.message()).payload == b"bob is gone"
    for topic in ("sensors/a", "$queue/sensors/q"):
        answer = await ann.publish(topic, b"x", 1)
        assert isinstance(answer, PubAck)
        assert answer.reason == NOT_AUTHORIZED
    door.exchange.publish(_message("sensors/a"), 1, False, None, door.now_ns())
    await door.site.broker.publish("default", "sensors/q", -1, _batch())
    await ann.nothing()


def _message(topic: str) -> Any:
    from headrace.wire.mqtt import OutgoingMessage

    return OutgoingMessage(topic, b"x")


def _batch() -> Any:
    from headrace.batch import Message, encode

    return encode([Message(b"x")])


async def test_what_was_kept_for_a_session_is_checked_when_it_is_resumed(open_door: OpenDoor, users: Path) -> None:
    passwords = PasswordCheck(users)
    door = await open_door(passwords=passwords, authenticate=no_tokens)
    ann = await Peer.connect(door.address, "s", user_name="ann", password=b"secret", session_expiry_interval=3600)
    await ann.subscribe("sensors/#", 1)
    await ann.close()
    bob = await Peer.connect(door.address, "b", user_name="bob", password=b"hidden")
    await bob.publish("sensors/a", b"a", 1)
    await bob.publish("sensors/b", b"b", 1)
    grant = {"verbs": ["consume"], "topics": ["sensors/b"]}
    save_user(users, {"name": "ann", "password": passwords.entry_of("ann"), "grants": [grant]})
    passwords.reload()
    door.reload()
    ann = await Peer.connect(
        door.address, "s", user_name="ann", password=b"secret", clean_start=False, session_expiry_interval=3600
    )
    assert (await ann.message()).payload == b"b"
    await ann.nothing()


async def test_a_certificate_lets_its_user_in_and_no_other(open_door: OpenDoor, users: Path, tmp_path: Path) -> None:
    own = certificate(tmp_path, "localhost")
    theirs = {name: certificate(tmp_path, name) for name in ("device-7", "device-8")}
    authority = tmp_path / "ca.pem"
    authority.write_text("".join(path.read_text() for path in theirs.values()))
    config = TlsConfig(certificate=str(own), client_ca=str(authority), client_certificates="optional")
    door = await open_door(passwords=PasswordCheck(users), authenticate=no_tokens, tls=server_context(config))
    reasons = {}
    for name in ("device-7", "device-8", ""):
        context = ssl.create_default_context(cafile=str(own))
        if name:
            context.load_cert_chain(theirs[name])
        peer = await Peer.connect(door.address, name or "nobody", tls=context)
        assert peer.connack is not None
        reasons[name] = peer.connack.reason
        if name == "device-7":
            assert (await peer.subscribe("sensors/x", 1)).reasons == (1,)
        await peer.close()
    assert reasons["device-7"] == 0
    assert reasons["device-8"] in (NOT_AUTHORIZED, BAD_PASSWORD)
    assert reasons[""] in (NOT_AUTHORIZED, BAD_PASSWORD)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"name": "x", "password": "clear text", "grants": [{"verbs": ["publish"]}]}, "must be a hash"),
        ({"name": "x", "grants": [{"verbs": ["publish"]}]}, "neither a password nor a certificate"),
        ({"name": "", "certificate": True, "grants": [{"verbs": ["publish"]}]}, "printable characters"),
        ({"name": "x", "certificate": True, "grants": [{"verbs": ["fly"]}]}, "fly"),
        ({"name": "x", "certificate": True, "grants": [], "colour": 1}, "colour"),
    ],
)
def test_a_wrong_entry_is_refused_with_what_is_wrong(tmp_path: Path, entry: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        save_user(tmp_path / "users.json", entry)


async def test_a_subscribe_with_several_filters_is_judged_filter_by_filter(address: str, issuer: Issuer) -> None:
    token = issuer.token({"verbs": ["consume"], "topics": ["a/#"]})
    peer = await Peer.connect(address, "x", password=token, user_name="x")
    peer.send(Subscribe(5, (Subscription("a/1", 1), Subscription("b", 1), Subscription("a/+", 0))))
    assert (await peer.expect(SubAck)).reasons == (1, NOT_AUTHORIZED, 0)
