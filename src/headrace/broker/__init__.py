"""The one façade all doors use: names instead of numbers, over the shards."""

from headrace.broker.broker import Broker

__all__ = ["Broker"]
