"""What the guides promise to explain is there, in a page that the index names. Their examples run in test_examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
PROMISED = [
    (
        "F048",
        "publish-and-consume.md",
        "Handle a message twice without harm",
        "check the id, do the work, record the id",
    ),
    ("F079", "ordering.md", "How many partitions", "partitions = 2 × max_consumers"),
    ("F080", "ordering.md", "Good keys", "user id"),
    ("F080", "ordering.md", "Good keys", "a timestamp | bad"),
    ("F080", "ordering.md", "Good keys", "a random UUID | useless"),
    ("F104", "delays.md", "What for", "cancel an order that is not paid"),
    ("F104", "delays.md", "What for", "timeout of a saga"),
    ("F104", "delays.md", "What for", "rate limiting"),
    ("F232", "troubleshooting.md", "Messages are not delivered", "headrace explain"),
    ("F232", "troubleshooting.md", "Messages are delivered more than once", "lease_expired"),
    ("F232", "troubleshooting.md", "The depth grows", "good keys"),
    ("F232", "troubleshooting.md", "A restart or a failover is slow", "snapshot"),
    ("F270", "mqtt.md", "From plain MQTT", "publish to `$queue/jobs`, QoS 1"),
    ("F270", "mqtt.md", "From shared subscriptions", "`$queue/jobs/$group/workers`"),
    ("F195", "mqtt.md", "From shared subscriptions", "keeps its meaning here: it is ephemeral"),
    ("F271", "mqtt.md", "A task queue", "--ordering none"),
    ("F271", "mqtt.md", "A stream of user events", "Three workers"),
    ("F271", "mqtt.md", "Request and reply", "auth/validate"),
    ("F271", "mqtt.md", "Watching the dead letters", "headrace dlq redrive"),
    ("F271", "use-cases.md", "A task queue", "concurrency=5"),
    ("F271", "use-cases.md", "A stream of user events", "key=user_id"),
]


@pytest.mark.parametrize(
    ("page", "heading", "says"),
    [pytest.param(*row[1:], marks=pytest.mark.feature(row[0]), id=f"{row[0]}-{row[3][:20]}") for row in PROMISED],
)
def test_a_guide_has_its_section(page: str, heading: str, says: str) -> None:
    text = (GUIDES / page).read_text()
    section = re.split(r"^## ", text.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    assert says in section, f"{page} has no section {heading!r} with {says!r}"
    assert f"]({page})" in (GUIDES / "index.md").read_text()


def test_every_guide_is_in_the_index_and_links_lead_somewhere() -> None:
    index = (GUIDES / "index.md").read_text()
    for page in GUIDES.glob("*.md"):
        assert page.name == "index.md" or f"]({page.name})" in index, page.name
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


def test_python_in_the_guides_can_be_read_by_python() -> None:
    for page in GUIDES.glob("*.md"):
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            compile(block, page.name, "exec")
