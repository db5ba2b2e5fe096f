"""What other systems can be told about their queues can be told to this one, and means the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import TopicConfig, with_settings
from headrace.config.sources import load_server_config
from headrace.limits import SECOND_NS

HOUR_NS = 3_600 * SECOND_NS
MIB = 1 << 20


@pytest.mark.feature("F248")
def test_the_defaults_are_those_of_the_semantics_and_the_rest_is_a_setting_away() -> None:
    topic = TopicConfig()
    assert (topic.max_message_bytes, topic.message_ttl_ns, topic.lease_ns) == (MIB, 168 * HOUR_NS, 30 * SECOND_NS)
    retry = topic.retry
    assert (retry.max_retries, retry.initial_backoff_ns, retry.max_backoff_ns) == (10, 5 * SECOND_NS, 300 * SECOND_NS)
    assert (retry.backoff_multiplier, retry.total_timeout_ns) == (2.0, 3 * HOUR_NS)
    assert topic.dead_letters
    # One partition and order by key instead of ten and order by partition: docs/decisions/0001.
    other = with_settings(topic, {"partitions": 10, "ordering": "partition", "max_depth": 100_000})
    assert (other.partitions, other.ordering, other.max_depth) == (10, "partition", 100_000)


@pytest.mark.feature("F250")
def test_storage_directory_life_size_depth_and_retries_come_from_the_environment() -> None:
    config = load_server_config(
        environment={
            "HEADRACE_JOURNAL": "memory",
            "HEADRACE_DATA_DIR": "./queue",
            "HEADRACE_TOPIC_DEFAULTS__MESSAGE_TTL": "24h",
            "HEADRACE_TOPIC_DEFAULTS__MAX_MESSAGE_SIZE": "1MB",
            "HEADRACE_TOPIC_DEFAULTS__MAX_DEPTH": "100000",
            "HEADRACE_TOPIC_DEFAULTS__RETRY__MAX_RETRIES": "3",
            "HEADRACE_HOST": "10.0.0.7",
            "HEADRACE_NATIVE_PORT": "5672",
        }
    ).config
    topic = config.topic_defaults
    assert (config.journal, config.data_dir, config.host, config.native_port) == ("memory", "./queue", "10.0.0.7", 5672)
    assert (topic.message_ttl_ns, topic.max_message_bytes) == (24 * HOUR_NS, 1_000_000)
    assert (topic.max_depth, topic.retry.max_retries) == (100_000, 3)


@pytest.mark.feature("F252")
def test_node_directory_doors_and_what_topics_start_with_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text(
        """
        node_id: 1
        data_dir: /srv/headrace
        http_port: 8080
        grpc_port: 9000
        topic_defaults:
          partitions: 6
          retention: 168h
          retention_bytes: 10737418240
          lease: 30s
          max_delay: 168h
          lanes: strict
          retry: {max_retries: 3}
          dead_letters: {enabled: true}
        """
    )
    config = load_server_config(file=file).config
    topic = config.topic_defaults
    assert (config.node_id, config.data_dir, config.http_port, config.grpc_port) == (1, "/srv/headrace", 8080, 9000)
    assert (topic.partitions, topic.retention_ns, topic.retention_bytes) == (6, 168 * HOUR_NS, 10 << 30)
    assert (topic.lease_ns, topic.max_delay_ns, topic.retry.max_retries) == (30 * SECOND_NS, 168 * HOUR_NS, 3)
    assert topic.dead_letters
