"""Ordinary MQTT behind the sockets: sessions, subscriptions, retained messages, wills, shared subscriptions."""

from headrace.pubsub.bounds import Bounds
from headrace.pubsub.client import Client, Link, Pending, QueueHeld
from headrace.pubsub.exchange import Exchange, Ledger
from headrace.pubsub.recovery import Recovery, facts_of
from headrace.pubsub.retained import Retained
from headrace.pubsub.share import Share

__all__ = [
    "Bounds",
    "Client",
    "Exchange",
    "Ledger",
    "Link",
    "Pending",
    "QueueHeld",
    "Recovery",
    "Retained",
    "Share",
    "facts_of",
]
