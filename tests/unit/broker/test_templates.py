"""Templates: what a new topic starts with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.batch import Message, encode
from headrace.broker.administration import Administration
from headrace.broker.broker import Broker
from headrace.broker.embedded import open_core
from headrace.calls import BY_KEY
from headrace.config import TopicConfig
from headrace.config.sources import describe, load_server_config
from headrace.errors import InvalidArgument

TEMPLATES = {
    "jobs/slow/#": {"lease": "10m", "retry": {"max_retries": 1}},
    "jobs/+": {"lease": "1m", "retry.max_retries": 3},
}


@pytest.fixture
def broker() -> Broker:
    return Broker(open_core(":memory:"), topic_defaults=TopicConfig(max_depth=7), topic_templates=TEMPLATES)


@pytest.mark.feature("F227", "F014")
@pytest.mark.parametrize(
    ("topic", "lease_s", "retries"),
    [
        ("jobs/slow/video", 600, 1),
        ("jobs/slow", 600, 1),
        ("jobs/mail", 60, 3),
        ("jobs/a/b", 30, 10),
        ("orders", 30, 10),
    ],
)
def test_a_topic_made_on_first_use_starts_with_the_first_template_that_matches(
    broker: Broker, topic: str, lease_s: int, retries: int
) -> None:
    broker.publish("default", topic, BY_KEY, encode([Message(b"v")]))
    settings = broker.find_topic("default", topic).settings
    assert (settings.lease_ns, settings.retry.max_retries) == (lease_s * 10**9, retries)
    assert settings.max_depth == 7


def test_what_a_topic_is_created_with_goes_on_top(broker: Broker) -> None:
    made = Administration(broker).call("topic.create", {"topic": "jobs/mail", "settings": {"lease": "5s"}}).reply
    assert (made["settings"]["lease"], made["settings"]["retry"]["max_retries"]) == ("5s", 3)


@pytest.mark.parametrize(
    ("templates", "says"),
    [
        ({"jobs/#/x": {}}, "may only be its last character"),
        ({"jobs/#": {"leese": "1m"}}, "did you mean 'lease'"),
        ({"jobs/#": {"lease": "1"}}, "'jobs/#': lease"),
        ({"jobs/#": "1m"}, "must have settings"),
        ({f"t{number}": {} for number in range(257)}, "at most 256"),
    ],
)
def test_what_is_wrong_with_a_template_is_said(templates: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Broker(open_core(":memory:"), topic_templates=templates)
    assert says in refused.value.message


def test_templates_stand_in_the_file_and_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text("topic_templates:\n  'jobs/#':\n    lease: 1m\n")
    loaded = load_server_config(file=file)
    assert loaded.config.topic_templates == {"jobs/#": {"lease": "1m"}}
    shown = tmp_path / "shown.yaml"
    shown.write_text(describe(loaded))
    assert load_server_config(file=shown).config == loaded.config
