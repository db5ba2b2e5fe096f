"""MQTT 3.1.1 and 5: ordinary topics as the standard says, ``$queue/<topic>`` as durable queues."""

from headrace.frontends.mqtt.door import MqttDoor

__all__ = ["MqttDoor"]
