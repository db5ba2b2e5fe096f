"""The same packets to Mosquitto and to us: equal answers, or a difference that stands below with its clause.

A script is packets of several clients, in turn; after each the answers of everybody are gathered until a PINGRESP. What
a broker is free in is left out of the comparison: packet identifiers it chooses, properties of CONNACK that tell its
own limits, reason strings.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.frontends.mqtt import MqttDoor
from headrace.wire.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from integration.mqtt_peer import Ended, Peer, close_door, cut_all, door_in_memory

LIMITS_OF_ITS_OWN = {
    "receive_maximum",
    "maximum_packet_size",
    "topic_alias_maximum",
    "reason_string",
    "server_keep_alive",
    "session_expiry_interval",
    "assigned_client_identifier",
}

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto") is None, reason="mosquitto is not there (apt-get install mosquitto)"
)


def sub(topic_filter: str, qos: int = 0, packet_id: int = 1, **options: Any) -> Subscribe:
    properties = {"subscription_identifiers": [options.pop("identifier")]} if "identifier" in options else None
    return Subscribe(packet_id, (Subscription(topic_filter, qos, **options),), properties)  # type: ignore[arg-type]


def pub(topic: str, payload: bytes = b"x", qos: int = 0, packet_id: int = 0, **more: Any) -> Publish:
    retain, dup = more.pop("retain", False), more.pop("dup", False)
    return Publish(topic, payload, qos, retain, dup, packet_id, more or None)  # type: ignore[arg-type]


Script = list[tuple[str, Packet | bytes | str]]
A, B = "a", "b"

BOTH: dict[str, Script] = {
    "each QoS to each QoS": [
        (A, sub("t/0", 0)),
        (A, sub("t/1", 1)),
        (A, sub("t/2", 2)),
        *(
            (B, pub(f"t/{low}", b"%d%d" % (low, high), high, 10 + high if high else 0))
            for low in range(3)
            for high in (0, 1)
        ),
    ],
    "QoS 2 step by step": [
        (A, sub("t", 0)),
        (B, pub("t", b"once", 2, 5)),
        (B, pub("t", b"once", 2, 5, dup=True)),
        (B, PubRel(5)),
        (B, PubRel(5)),
        (B, pub("t", b"again", 2, 5)),
        (B, PubRel(5)),
    ],
    "wildcards": [
        (A, sub("a/+/c")),
        (A, sub("a/#")),
        (A, sub("+/+")),
        *((B, pub(topic, topic.encode())) for topic in ("a/b/c", "a", "a/b", "x/y", "/y", "a/b/c/d", "b")),
    ],
    "the rule for dollars": [(A, sub("#")), (A, sub("+/x")), (B, pub("d/x"))],
    "overlapping subscriptions keep their highest QoS": [
        (A, sub("o/#", 0)),
        (A, sub("o/+", 0)),
        (B, pub("o/1", qos=1, packet_id=3)),
    ],
    "retained": [
        (B, pub("r/1", b"one", retain=True)),
        (B, pub("r/2", b"two", 1, 4, retain=True)),
        (A, sub("r/1", 1)),
        (B, pub("r/1", b"new", retain=True)),
        (B, pub("r/1", b"", retain=True)),
        (A, sub("r/1", 1)),
    ],
    "unsubscribe": [(A, sub("u", 0)), (A, Unsubscribe(7, ("u",))), (B, pub("u"))],
    "a filter that is wrong ends it": [(A, sub("a#"))],
    "a wildcard in a topic ends it": [(A, pub("a/+"))],
    "a second CONNECT ends it": [(A, Connect("a", 4))],
    "QoS 3 ends it": [(A, b"\x36\x05\x00\x01t\x00\x01")],
    "a reserved flag ends it": [(A, b"\x80\x02\x00\x01")],
    "identifier 0 ends it": [(A, b"\x32\x05\x00\x01t\x00\x00")],
    "a SUBSCRIBE of nothing ends it": [(A, b"\x82\x02\x00\x01")],
    "PUBACK for nothing is ignored": [(A, PubAck(77)), (A, PubComp(78))],
    "a will when it breaks off": [(B, sub("w", 0)), (A, "drop")],
    "no will after a goodbye": [(B, sub("w", 0)), (A, Disconnect())],
    "taken over": [(B, sub("w", 0)), (A, "again")],
}
FIVE: dict[str, Script] = {
    "no local": [(A, sub("n", no_local=True)), (A, pub("n")), (B, pub("n"))],
    "retain as published": [
        (A, sub("p", retain_as_published=True)),
        (B, pub("p", retain=True)),
        (B, pub("p", b"", retain=True)),
    ],
    "retain handling": [
        (B, pub("h", retain=True)),
        (A, sub("h", retain_handling=1)),
        (A, sub("h", retain_handling=1)),
        (A, sub("h", retain_handling=0)),
        (A, sub("h", retain_handling=2)),
        (B, pub("h", b"", retain=True)),
    ],
    "a subscription identifier": [(A, sub("i", identifier=9)), (B, pub("i"))],
    "properties travel": [
        (A, sub("p")),
        (B, pub("p", content_type="text/plain", correlation_data=b"1", response_topic="r", payload_format_indicator=1)),
        (B, pub("p", user_properties=[("a", "1"), ("b", "2"), ("a", "3")])),
    ],
    "an alias": [(A, sub("alias/topic")), (B, pub("alias/topic", topic_alias=1)), (B, pub("", topic_alias=1))],
    "an alias of 0 ends it": [(A, b"\x30\x08\x00\x01t\x03\x23\x00\x00x")],
    "an alias nobody gave ends it": [(A, pub("", topic_alias=3))],
    "a subscription identifier from a client ends it": [(A, pub("t", subscription_identifiers=[3]))],
    "nobody subscribed": [(A, pub("nobody", qos=1, packet_id=3))],
    "nothing to unsubscribe": [(A, Unsubscribe(4, ("nothing",)))],
    "AUTH nobody asked for ends it": [(A, b"\xf0\x00")],
    "goodbye with will": [(B, sub("w", 0)), (A, Disconnect(4))],
    "a session expiry that was 0 may not be raised": [(A, Disconnect(0, {"session_expiry_interval": 5}))],
    "PUBREL for nothing": [(A, PubRel(99))],
    "a property twice ends it": [(A, b"\x30\x09\x00\x01t\x04\x01\x00\x01\x00x")],
    "bad UTF-8 ends it": [(A, b"\x30\x05\x00\x02\xc3\x28\x00")],
}

# Where Mosquitto 2.0 differs, and the clause that we go by; docs/reference/mqtt.md tells users.
ONE_COPY = "MQTT-3.3.4-2 leaves the choice: one copy with all identifiers, where Mosquitto sends one a subscription"
TOLD = "§4.13: the end is told with a DISCONNECT and its reason, where Mosquitto only closes"
DIFFERENT: dict[tuple[str, int], str] = {
    ("QoS 2 step by step", 5): "§3.7.2.1: PUBCOMP for an identifier that is not in use says 0x92",
    ("PUBREL for nothing", 5): "§3.7.2.1: the same",
    ("wildcards", 5): ONE_COPY,
    ("the rule for dollars", 5): ONE_COPY,
    ("overlapping subscriptions keep their highest QoS", 5): ONE_COPY,
    (
        "a wildcard in a topic ends it",
        5,
    ): "MQTT-3.3.2-2: a malformed packet (0x81), where Mosquitto says protocol error",
    ("a second CONNECT ends it", 5): TOLD,
    ("AUTH nobody asked for ends it", 5): TOLD,
    ("a property twice ends it", 5): TOLD,
    ("taken over", 5): "MQTT-3.1.4-3: the earlier connection is told with 0x8E",
    ("an alias of 0 ends it", 5): "MQTT-3.3.2-8: 0x94, where Mosquitto says malformed",
    ("a subscription identifier from a client ends it", 5): "MQTT-3.3.4-6: a protocol error, which Mosquitto lets pass",
}


@pytest.fixture
async def mosquitto(tmp_path: Path) -> AsyncIterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nlog_type none\nallow_zero_length_clientid true\n"
    )
    process = await asyncio.create_subprocess_exec(
        "mosquitto", "-c", str(config), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.01)
                continue
            writer.close()
            break
    yield f"127.0.0.1:{port}"
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        await process.wait()


@pytest.fixture
async def ours() -> AsyncIterator[MqttDoor]:
    door = await door_in_memory()
    yield door
    await close_door(door)


class Told:
    """What one broker answered to a script."""

    def __init__(self, address: str, version: int, name: str) -> None:
        self.address = address
        self.version = version
        self.name = name
        self.peers: dict[str, Peer] = {}
        self.said: list[tuple[str, Any]] = []

    async def run(self, script: Script) -> list[tuple[str, Any]]:
        for who in (A, B):
            await self._connect(who)
        for who, what in script:
            if who not in self.peers:
                break
            peer = self.peers[who]
            if what == "drop":
                await self.peers.pop(who).close()
            elif what == "again":
                await self._connect(who)
                self._note(f"{who} before", await peer.ended())
            elif isinstance(what, bytes):
                peer.send_raw(what)
            else:
                assert isinstance(what, Packet)
                peer.send(what)
            for each in (*self.peers, B) if B in self.peers else tuple(self.peers):
                await self._gather(each)
        return self.said

    async def _connect(self, who: str) -> None:
        will = Will("w", b"bye", 0) if who == A else None
        peer = self.peers[who] = await Peer.connect(self.address, f"{self.name}-{who}", self.version, will=will)
        assert peer.connack is not None
        self._note(who, [peer.connack])

    async def _gather(self, who: str) -> None:
        """Everything for one client that comes before the answer to a second ping: the first may overtake others."""
        peer = self.peers.get(who)
        if peer is None:
            return
        found: list[Packet] = []
        try:
            pings = 2
            peer.send(PingReq())
            while pings:
                packet = await peer.receive()
                if isinstance(packet, PingResp):
                    pings -= 1
                    if pings:
                        peer.send(PingReq())
                    continue
                found.append(packet)
                if isinstance(packet, Publish) and packet.qos == 1:
                    peer.send(PubAck(packet.packet_id))
                elif isinstance(packet, Publish) and packet.qos == 2:
                    peer.send(PubRec(packet.packet_id))
        except (Ended, ConnectionError):
            del self.peers[who]
            self._note(who, [*found, "ended"])
            return
        self._note(who, found)

    def _note(self, who: str, packets: list[Any]) -> None:
        for packet in packets:
            self.said.append((who, _compared(packet)))


def _compared(packet: Any) -> Any:
    properties = {
        name: value
        for name, value in (getattr(packet, "properties", None) or {}).items()
        if name not in LIMITS_OF_ITS_OWN
    }
    match packet:
        case Publish():
            return ("PUBLISH", packet.topic, packet.payload, packet.qos, packet.retain, packet.dup, properties)
        case ConnAck():
            return ("CONNACK", packet.session_present, packet.reason)
        case SubAck() | UnsubAck():
            return (type(packet).__name__, packet.packet_id, tuple(packet.reasons or ()))
        case PubAck() | PubRec() | PubRel() | PubComp():
            return (type(packet).__name__, packet.packet_id, packet.reason)
        case Disconnect():
            return ("DISCONNECT", packet.reason)
        case _:
            return packet


CASES = [(name, version) for name in BOTH for version in (4, 5)] + [(name, 5) for name in FIVE]


async def test_mosquitto_and_we_answer_alike(mosquitto: str, ours: MqttDoor) -> None:
    wrong: list[str] = []
    for number, (name, version) in enumerate(CASES):
        script = BOTH.get(name) or FIVE[name]
        theirs = _by_client(await Told(mosquitto, version, f"d{number}").run(script))
        mine = _by_client(await Told(ours.address, version, f"d{number}").run(script))
        await cut_all()
        if theirs != mine and (name, version) not in DIFFERENT:
            wrong.append(f"{name} ({version}):\n  mosquitto {theirs}\n  headrace  {mine}")
    assert not wrong, "\n".join(wrong)


def _by_client(said: list[tuple[str, Any]]) -> dict[str, list[Any]]:
    """Each client's own order counts; the order between clients does not."""
    found: dict[str, list[Any]] = {}
    for who, what in said:
        found.setdefault(who, []).append(what)
    return found
