"""MQTT 3.1.1 and 5.0: codec and server session, sans-io.

``parse`` and ``build`` turn bytes into packets and back; `OutgoingMessage` frames one message for many subscribers;
`ServerSession` is the protocol of one connection.
"""

from headrace.wire.mqtt.builder import build, build_publish
from headrace.wire.mqtt.events import (
    Acked,
    Cause,
    Connected,
    Disconnected,
    Dropped,
    Event,
    Failed,
    Published,
    Recorded,
    Released,
    Subscribed,
    Unsubscribed,
)
from headrace.wire.mqtt.fanout import OutgoingMessage
from headrace.wire.mqtt.fields import CodecLimits, Failure
from headrace.wire.mqtt.limits import SessionLimits
from headrace.wire.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
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
from headrace.wire.mqtt.parser import NEED_MORE, Need, Parsed, parse
from headrace.wire.mqtt.reasons import Reason
from headrace.wire.mqtt.sender import Sent
from headrace.wire.mqtt.session import ServerSession
from headrace.wire.mqtt.session_state import Outbound, SessionState, Stage
from headrace.wire.mqtt.states import State

__all__ = [
    "NEED_MORE",
    "Acked",
    "Auth",
    "Cause",
    "CodecLimits",
    "ConnAck",
    "Connect",
    "Connected",
    "Disconnect",
    "Disconnected",
    "Dropped",
    "Event",
    "Failed",
    "Failure",
    "Need",
    "Outbound",
    "OutgoingMessage",
    "Packet",
    "Parsed",
    "PingReq",
    "PingResp",
    "Properties",
    "PubAck",
    "PubComp",
    "PubRec",
    "PubRel",
    "Publish",
    "Published",
    "Reason",
    "Recorded",
    "Released",
    "Sent",
    "ServerSession",
    "SessionLimits",
    "SessionState",
    "Stage",
    "State",
    "SubAck",
    "Subscribe",
    "Subscribed",
    "Subscription",
    "UnsubAck",
    "Unsubscribe",
    "Unsubscribed",
    "Will",
    "build",
    "build_publish",
    "parse",
]
