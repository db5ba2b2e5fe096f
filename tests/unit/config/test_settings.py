"""Keys, defaults, overrides, and what a wrong one is told."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import (
    GroupConfig,
    NamespaceConfig,
    RetryConfig,
    RetryOverrides,
    ServerConfig,
    TopicConfig,
    differences,
    from_plain,
    kinds,
    settings_of,
    to_plain,
    with_settings,
)
from headrace.config.sources import parse_assignments
from headrace.errors import InvalidArgument

SECOND_NS = 10**9
EVERY = [TopicConfig, GroupConfig, NamespaceConfig, ServerConfig]
CHECKED_TEXTS = ["", "dlq/orders", "https://example.org/hook", "team-a:1000,team-b:5"]
"""For settings whose text has a form that random text hardly ever has."""


def values_of(kind: kinds.Kind) -> st.SearchStrategy[Any]:
    """Values a setting of that kind may hold."""
    match kind:
        case kinds.Optional():
            return st.none() | values_of(kind.kind)
        case kinds.Choice():
            return st.sampled_from(kind.words)
        case kinds.Flag():
            return st.booleans()
        case kinds.Port():
            return st.none() | st.integers(0, 65_535)
        case kinds.Lanes():
            return st.integers(0, 10**15)
        case kinds.Plain():
            return st.dictionaries(st.text(), st.text() | st.integers(-5, 5))
        case kinds.Text() if kind.check is not None:
            return st.sampled_from(list(filter(kind.fits, CHECKED_TEXTS)))
        case kinds.Text():
            return st.text(st.characters(categories=["L", "N", "P", "Zs"])).filter(kind.fits)
        case kinds.Real():
            return st.floats(kind.low, kind.high)
        case kinds.Whole() | kinds.Duration() | kinds.Size():
            return st.integers(kind.low, kind.high)
    raise AssertionError(kind)


@st.composite
def configs(draw: st.DrawFn, config_type: type[msgspec.Struct]) -> msgspec.Struct:
    given_values: dict[str, object] = {}
    for key, setting in settings_of(config_type).items():
        if key.endswith(("lease", "max_lease")) or not draw(st.booleans()):
            continue  # the two leases constrain each other and have their own test
        given_values[key] = setting.kind.format(draw(values_of(setting.kind)))
    return with_settings(config_type(), given_values)


@pytest.mark.parametrize("config_type", EVERY)
@given(data=st.data())
def test_a_configuration_survives_its_plain_form_and_json(
    config_type: type[msgspec.Struct], data: st.DataObject
) -> None:
    config = data.draw(configs(config_type))
    assert from_plain(config_type, to_plain(config)) == config
    assert from_plain(config_type, json.loads(json.dumps(to_plain(config)))) == config
    assert from_plain(config_type, to_plain(config, changed_only=True)) == config
    assert differences(config, from_plain(config_type, to_plain(config))) == []


@pytest.mark.parametrize("config_type", EVERY)
@given(data=st.data())
def test_every_setting_can_be_written_as_text(config_type: type[msgspec.Struct], data: st.DataObject) -> None:
    for setting in settings_of(config_type).values():
        held = data.draw(values_of(setting.kind))
        written = setting.kind.format(held)
        if written is not None and not isinstance(written, dict):
            assert setting.kind.parse(str(written)) == held


def test_the_defaults_of_a_topic_are_the_documented_ones() -> None:
    assert to_plain(TopicConfig()) == {
        "partitions": 1,
        "ordering": "key",
        "on_dead": "continue",
        "lease": "30s",
        "max_lease": "12h",
        "retry": {
            "max_retries": 10,
            "initial_backoff": "5s",
            "max_backoff": "5m",
            "backoff_multiplier": 2.0,
            "total_timeout": "3h",
            "jitter": "off",
        },
        "dead_letters": {"enabled": True, "topic": None, "alert_webhook": None},
        "message_ttl": "168h",
        "max_message_size": "1MiB",
        "max_depth": 10_000_000,
        "max_delay": "168h",
        "max_in_flight": 100_000,
        "retention": "168h",
        "retention_bytes": "10GiB",
        "retain_acked": True,
        "dedup_window": "5m",
        "lanes": "strict",
        "push": "round_robin",
        "mqtt": {"settle": "explicit"},
    }


@pytest.mark.feature("F251")
def test_the_size_of_a_message_can_be_set_up_to_its_ceiling() -> None:
    assert with_settings(TopicConfig(), {"max_message_size": "64MiB"}).max_message_bytes == 64 << 20
    with pytest.raises(InvalidArgument, match=r"max_message_size.*64MiB"):
        with_settings(TopicConfig(), {"max_message_size": "65MiB"})


@pytest.mark.parametrize(
    ("given_key", "meant"),
    [
        ("retry.max_retires", "retry.max_retries"),
        ("max_retries", "retry.max_retries"),
        ("retry.MAX_RETRIES", "retry.max_retries"),
        ("retry.max-retries", "retry.max_retries"),
        ("partition", "partitions"),
        ("visibility_timeout", "lease"),
        ("max_queue_depth", "max_depth"),
        ("retry_policy.max_retries", "retry.max_retries"),
    ],
)
def test_an_unknown_key_is_told_the_nearest_one(given_key: str, meant: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        with_settings(TopicConfig(), {given_key: 3})
    assert refused.value.message == f"unknown key {given_key!r}; did you mean {meant!r}?"


def test_a_key_like_no_other_is_told_all() -> None:
    with pytest.raises(InvalidArgument, match="known are partitions, ordering"):
        with_settings(TopicConfig(), {"zzz": 1})


def test_a_section_is_not_a_setting_and_a_setting_no_section() -> None:
    with pytest.raises(InvalidArgument, match=r"retry is a section.*retry\.max_retries"):
        with_settings(TopicConfig(), {"retry": 3})
    with pytest.raises(InvalidArgument, match="lease is a setting"):
        with_settings(TopicConfig(), {"lease": {"seconds": 3}})


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("partitions", 0, "from 1 to 1024"),
        ("partitions", "many", "'many' is not valid; expected a whole number"),
        ("partitions", 1.5, "1.5 is not valid"),
        ("partitions", True, "True is not valid"),
        ("partitions", None, "None is not valid"),
        ("partitions", "1" * 10_000, "is not valid"),
        ("ordering", "fifo", "expected none, key, partition or strict"),
        ("lease", 30, "write '30s'"),
        ("lease", "0s", "at least 1ms"),
        ("lease", "-1s", "is not a time span"),
        ("retry.backoff_multiplier", "nan", "out of range"),
        ("retry.backoff_multiplier", 0.5, "from 1 to 1000"),
        ("retry.jitter", 2, "from 0 to 1, or off"),
        ("dead_letters.enabled", "maybe", "true or false"),
        ("dead_letters.topic", "$bad", "a topic name"),
        ("dead_letters.alert_webhook", "ftp://x", "http:// or https://"),
        ("dead_letters.alert_webhook", "http://", "http:// or https://"),
        ("lanes", "aging:0s", "aging:30s"),
        ("message_ttl", "200000w", "out of range"),
        ("max_depth", -1, "out of range"),
        ("max_message_size", "1XB", "unknown unit"),
    ],
)
def test_a_wrong_value_is_told_with_its_key_and_what_would_be_right(key: str, value: object, says: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        with_settings(TopicConfig(), {key: value})
    assert refused.value.message.startswith(f"{key}: ")
    assert says in refused.value.message
    assert len(refused.value.message) < 300


def test_all_problems_are_told_at_once_and_not_too_many() -> None:
    with pytest.raises(InvalidArgument) as refused:
        with_settings(TopicConfig(), {"partitions": 0, "ordering": "x", "leese": 1})
    assert len(refused.value.message.splitlines()) == 3
    with pytest.raises(InvalidArgument, match="and 90 more"):
        with_settings(TopicConfig(), {f"key{number}": 1 for number in range(100)})


@pytest.mark.parametrize(
    ("key", "word", "attribute"),
    [
        ("message_ttl", "none", "message_ttl_ns"),
        ("max_delay", "none", "max_delay_ns"),
        ("max_depth", "none", "max_depth"),
        ("max_depth", "0", "max_depth"),
        ("retention", None, "retention_ns"),
        ("retention_bytes", "none", "retention_bytes"),
        ("dedup_window", "off", "dedup_window_ns"),
        ("lanes", "strict", "aging_ns"),
    ],
)
def test_a_limit_is_switched_off_by_a_word(key: str, word: str | None, attribute: str) -> None:
    assert getattr(with_settings(TopicConfig(), {key: word}), attribute) == 0


def test_lanes_age_with_a_bound() -> None:
    assert with_settings(TopicConfig(), {"lanes": "aging"}).aging_ns == 60 * SECOND_NS
    assert with_settings(TopicConfig(), {"lanes": "aging:5s"}).aging_ns == 5 * SECOND_NS


def test_strict_ordering_forces_one_partition() -> None:
    assert with_settings(TopicConfig(), {"partitions": 10, "ordering": "strict"}).partitions == 1


def test_a_lease_must_fit_its_longest_extension() -> None:
    with pytest.raises(InvalidArgument, match="lease: 7200s is above max_lease, 3600s"):
        with_settings(TopicConfig(), {"lease": "2h", "max_lease": "1h"})
    assert with_settings(TopicConfig(), {"lease": "13h", "max_lease": "14h"}).lease_ns == 13 * 3600 * SECOND_NS


def test_values_given_in_python_are_checked_too() -> None:
    with pytest.raises(InvalidArgument, match="partitions: 0"):
        TopicConfig(partitions=0)
    with pytest.raises(InvalidArgument, match="max_retries: -1"):
        RetryConfig(max_retries=-1)
    with pytest.raises(InvalidArgument, match="http_port: 70000"):
        ServerConfig(http_port=70_000)


def test_dotted_overrides_of_the_command_line() -> None:
    given_settings = parse_assignments(["retry.max_retries=3", "lease = 1m", "dead_letters.enabled=false"])
    config = with_settings(TopicConfig(), {key: value for key, value, _ in given_settings})
    assert (config.retry.max_retries, config.lease_ns, config.dead_letters) == (3, 60 * SECOND_NS, False)


@pytest.mark.parametrize("text", ["retry.max_retries", "=3", ""])
def test_an_override_without_a_key_or_value_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"key=value, such as retry\.max_retries=3"):
        parse_assignments([text])


def test_settings_that_conflict_are_named_with_both_values() -> None:
    one = TopicConfig()
    other = with_settings(one, {"ordering": "none", "retry.max_retries": 3})
    assert differences(one, other) == [("ordering", "key", "none"), ("retry.max_retries", 10, 3)]


def test_a_group_overrides_its_topic_field_by_field() -> None:
    topic = with_settings(TopicConfig(), {"retry.initial_backoff": "1s", "lease": "1m"})
    group = GroupConfig(lease_ns=5 * SECOND_NS, retry=RetryOverrides(max_retries=3), dead_letters=False)
    effective = group.over(topic)
    assert effective.lease_ns == 5 * SECOND_NS
    assert effective.retry.max_retries == 3
    assert effective.retry.initial_backoff_ns == SECOND_NS
    assert not effective.dead_letters
    assert GroupConfig().over(topic) == topic


def test_a_group_cannot_leave_the_one_order_of_a_strict_topic_nor_ask_many_partitions_for_it() -> None:
    assert GroupConfig(ordering="none").over(TopicConfig(ordering="strict")).ordering == "strict"
    assert GroupConfig(ordering="strict").over(TopicConfig()).ordering == "strict"
    with pytest.raises(InvalidArgument, match="needs a topic of one partition; this one has 6"):
        GroupConfig(ordering="strict").over(TopicConfig(partitions=6))


def test_a_group_has_limits_and_a_filter_of_its_own() -> None:
    group = with_settings(
        GroupConfig(),
        {"limits": {"rate": 100, "concurrency": "5"}, "filter": {"headers": {"region": "eu"}}, "auto_ack": "yes"},
    )
    assert (group.rate, group.concurrency, group.auto_ack) == (100.0, 5, True)
    assert group.filter == {"headers": {"region": "eu"}}
    assert with_settings(group, {"filter": '{"topic": "a/+"}'}).filter == {"topic": "a/+"}
    assert with_settings(group, {"filter": "none"}).filter is None
    with pytest.raises(InvalidArgument, match=r"filter: .*JSON object"):
        with_settings(group, {"filter": "region=eu"})


def test_every_setting_says_what_it_is() -> None:
    for key, setting in {**settings_of(TopicConfig), **settings_of(ServerConfig)}.items():
        assert setting.help, key
        assert setting.kind.expected, key


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_no_value_whatever_crashes_a_setting(value: object) -> None:
    for key, setting in settings_of(TopicConfig).items():
        try:
            held = setting.kind.parse(value)
        except InvalidArgument as refused:
            assert len(refused.message) < 400, key
        else:
            assert setting.kind.fits(held)
