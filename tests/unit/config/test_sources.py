"""File, environment, flags: which wins, where a value came from, where a mistake was."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import ServerConfig
from headrace.config.sources import describe, load_server_config, yaml_assignments
from headrace.errors import InvalidArgument


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "headrace.yaml"


def test_without_anything_every_value_is_the_default() -> None:
    loaded = load_server_config()
    assert loaded.config == ServerConfig()
    assert set(loaded.origins.values()) == {"default"}


@pytest.mark.feature("F251")
def test_later_sources_win_and_each_value_knows_where_it_came_from(file: Path) -> None:
    file.write_text("http_port: 1\nmqtt_port: 1\nnative_port: 1\nlog:\n  level: error\n")
    loaded = load_server_config(
        file=file,
        environment={"HEADRACE_MQTT_PORT": "2", "HEADRACE_NATIVE_PORT": "2", "PATH": "/bin"},
        flags={"native_port": "3", "grpc_port": None},
    )
    config = loaded.config
    assert (config.http_port, config.mqtt_port, config.native_port, config.grpc_port) == (1, 2, 3, 9000)
    assert loaded.origins["http_port"] == f"{file}:1"
    assert loaded.origins["mqtt_port"] == "environment variable HEADRACE_MQTT_PORT"
    assert loaded.origins["native_port"] == "--native-port"
    assert loaded.origins["log.level"] == f"{file}:5"
    assert loaded.origins["grpc_port"] == "default"


@pytest.mark.feature("F251")
def test_a_server_can_be_set_up_wholly_from_a_file(file: Path) -> None:
    file.write_text(
        """
        data_dir: /srv/queue          # a comment
        journal: memory
        mqtt_port: off
        http_port: 0
        log: {level: debug, format: json}
        metrics: {enabled: no, interval: 1m}
        topic_defaults:
          message_ttl: 24h
          max_message_size: 1MB
          max_depth: 100_000
          retry:
            max_retries: 3
            total_timeout: none
          dead_letters:
            topic: ~
        """
    )
    config = load_server_config(file=file).config
    assert (config.data_dir, config.journal, config.mqtt_port, config.http_port) == ("/srv/queue", "memory", None, 0)
    assert (config.log.level, config.log.format, config.metrics.enabled) == ("debug", "json", False)
    assert config.metrics.interval_ns == 60 * 10**9
    topic = config.topic_defaults
    assert (topic.message_ttl_ns, topic.max_message_bytes, topic.max_depth) == (86_400 * 10**9, 10**6, 100_000)
    assert (topic.retry.max_retries, topic.retry.total_timeout_ns, topic.dead_letter_topic) == (3, 0, "")


@pytest.mark.feature("F245")
def test_level_and_encoding_of_the_log_come_from_the_environment() -> None:
    config = load_server_config(environment={"HEADRACE_LOG__LEVEL": "WARNING", "HEADRACE_LOG__FORMAT": "json"}).config
    assert (config.log.level, config.log.format) == ("warning", "json")


def test_the_effective_configuration_can_be_loaded_again(file: Path) -> None:
    flags = {
        "data_dir": 'a "strange": #name',
        "mqtt_port": "off",
        "topic_defaults.lanes": "aging:5s",
        "log.level": "error",
    }
    loaded = load_server_config(flags=flags)
    text = describe(loaded)
    file.write_text(text)
    assert load_server_config(file=file).config == loaded.config
    assert "  level: error" in text
    assert "# --log-level" in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http_port: 1\nmqtt_prt: 2\n", ":2: unknown key 'mqtt_prt'; did you mean 'mqtt_port'?"),
        ("log:\n  levle: info\n", ":2: unknown key 'log.levle'; did you mean 'log.level'?"),
        ("log:\n\n  level: loud\n", ":3: log.level: 'loud' is not valid; expected debug, info, warning or error"),
        ("topic_defaults:\n  lease: 30\n", ":2: topic_defaults.lease: '30' has no unit; write 30s"),
        ("http_port: 99999", ":1: http_port: '99999' is not valid; expected a port"),
        ("http_port: [1, 2]", ":1: http_port: expected one value, not a list"),
        ("http_port: 1\nhttp_port: 2\n", ":2: http_port is already set in line 1"),
        ("? [a, b]\n: 1\n", ":1: a key must be a word"),
        ("- a\n- b\n", ":1: expected settings"),
        ("just text", ":1: expected settings"),
        ("a: b: c\n", ":1: not valid YAML"),
        ("x: 'open\n", "not valid YAML"),
        ("log: info", ":1: log is a section, not a setting; its keys are log.level, log.format"),
        ("log: &a\n  log: *a\n", "at most 8 deep"),
        ("a: !!python/object/apply:os.system ['x']", "expected one value"),
        ("http_port: \x00", "not valid YAML"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(InvalidArgument) as refused:
        load_server_config(file=file)
    assert refused.value.message.startswith(str(file))
    assert says in refused.value.message


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "---\n"])
def test_an_empty_file_sets_nothing(text: str) -> None:
    assert yaml_assignments(text, "headrace.yaml") == []


def test_a_file_that_cannot_be_read_is_one_sentence(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"headrace\.yaml: No such file"):
        load_server_config(file=file)
    with pytest.raises(InvalidArgument, match="Is a directory"):
        load_server_config(file=tmp_path)
    file.write_bytes(b"http_port: \xff")
    with pytest.raises(InvalidArgument, match=r"not UTF-8 text \(byte 11\)"):
        load_server_config(file=file)
    file.write_bytes(b"#" * (1 << 21))
    with pytest.raises(InvalidArgument, match="larger than"):
        load_server_config(file=file)


def test_an_unknown_variable_of_ours_is_told_the_nearest_one() -> None:
    with pytest.raises(InvalidArgument, match="HEADRACE_HTPP_PORT; did you mean HEADRACE_HTTP_PORT"):
        load_server_config(environment={"HEADRACE_HTPP_PORT": "1"})


def test_a_wrong_value_in_a_variable_or_a_flag_names_it() -> None:
    with pytest.raises(InvalidArgument, match="environment variable HEADRACE_HTTP_PORT: http_port: 'x' is not valid"):
        load_server_config(environment={"HEADRACE_HTTP_PORT": "x"})
    with pytest.raises(InvalidArgument, match="--drain-timeout: drain_timeout: '5' has no unit"):
        load_server_config(flags={"drain_timeout": "5"})


def test_variables_of_other_commands_are_left_alone() -> None:
    others = {"HEADRACE_URL": "headrace://h:1", "HEADRACE_TOKEN": "t", "HEADRACE_CONFIG": "f", "HEADRACE_SEEDS": "9"}
    assert load_server_config(environment=others).config == ServerConfig()


@given(st.text())
def test_no_text_whatever_crashes_the_reader(text: str) -> None:
    try:
        assignments = yaml_assignments(text, "f")
    except InvalidArgument:
        return
    assert all(assignment.where.startswith("f:") for assignment in assignments)
