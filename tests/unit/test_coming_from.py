"""The page for people who come from elsewhere: every name it gives as ours is one."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from headrace.broker.metrics import FAMILIES
from headrace.config import GroupConfig, ServerConfig, TopicConfig, settings_of
from headrace.config.sources import load_server_config
from headrace.frontends.http.table import all_routes
from headrace.frontends.keys import load_keys

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
SETTINGS = set(settings_of(ServerConfig)) | set(settings_of(TopicConfig)) | set(settings_of(GroupConfig))


def test_every_call_on_the_page_is_a_route() -> None:
    routes = {(route.method, re.sub(r"{\w+}", "{}", route.path)) for route in all_routes()}
    calls = {
        (method, re.sub(r"{\w+}", "{}", path.partition("?")[0]))
        for method, path in re.findall(r"`(GET|POST|PUT|PATCH|DELETE) (/[^` ]*)", PAGE)
    }
    assert len(calls) > 30
    assert not calls - routes


@pytest.mark.feature("F249", "F250", "F252")
def test_every_setting_on_the_page_is_one() -> None:
    variables = set(re.findall(r"\bHEADRACE_[A-Z_]+\b", PAGE))
    keys = {name.removeprefix("HEADRACE_").lower().replace("__", ".") for name in variables}
    keys |= set(re.findall(r"`(topic_defaults\.[a-z_.]+)`", PAGE))
    keys |= set(re.findall(r"\| `((?:retry|dead_letters|limits|seal|tls|auth|metrics)\.[a-z_]+)` \|", PAGE))
    assert len(keys) > 25
    assert not keys - SETTINGS - {"limits.max_message_size", "limits.max_queue_depth", "limits.message_ttl"}


@pytest.mark.feature("F249")
def test_the_environment_of_a_priority_queue_translates(tmp_path: Path) -> None:
    config = load_server_config(
        environment={
            "HEADRACE_DATA_DIR": str(tmp_path),
            "HEADRACE_NODE_ID": "7",
            "HEADRACE_LOG__LEVEL": "debug",
            "HEADRACE_LOG__FORMAT": "json",
            "HEADRACE_AUTH__KEYS": "keys.json",
            "HEADRACE_NAMESPACE_QUOTAS": "tenant-a:1000,tenant-b:500",
        }
    ).config
    assert (config.node_id, config.log.level, config.log.format) == (7, "debug", "json")
    assert (config.auth.keys, config.namespace_quotas) == ("keys.json", "tenant-a:1000,tenant-b:500")


def test_every_metric_on_the_page_is_exposed() -> None:
    names = set(re.findall(r"\b(?:headrace|mqtt_queue)_[a-z_]+(?<!_)\b", PAGE)) - {"headrace_"}
    assert len(names) > 12
    assert names <= set(FAMILIES)


def test_a_secret_becomes_a_file_of_keys(tmp_path: Path) -> None:
    [script] = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    secret = "a-secret-of-more-than-thirty-two-bytes/+=?"
    subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env={"JWT_SECRET": secret, "PATH": "/usr/bin:/bin"}, check=True
    )
    keys = load_keys(tmp_path / "keys.json")
    assert keys["main"].checking == secret.encode()
    assert json.loads((tmp_path / "keys.json").read_text())["keys"][0]["alg"] == "HS256"
