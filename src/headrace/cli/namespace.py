"""``headrace namespace``: namespaces, and what each may use."""

from __future__ import annotations

from typing import Any

import click

from headrace.cli.place import Place, located
from headrace.cli.topic import flat, given_settings, setting_text

__all__ = ["namespace"]


@click.group()
def namespace() -> None:
    """Namespaces, and what each may use."""


@namespace.command("list")
@located
def list_(place: Place) -> None:
    """The names of all namespaces."""
    with place.open() as broker:
        for name in broker.call_all("namespace.list"):
            place.output.value(name, name)


@namespace.command()
@click.argument("name", required=False)
@located
def show(place: Place, name: str | None) -> None:
    """What a namespace may use, and uses."""
    with place.open() as broker:
        _tell(place, broker.call_all("namespace.show", namespace=name or broker.namespace))


@namespace.command()
@click.argument("name", required=False)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Such as quota.messages_per_minute=60000; repeatable."
)
@located
def config(place: Place, name: str | None, settings: tuple[str, ...]) -> None:
    """Change what a namespace may use; what is not named stays."""
    given = given_settings(settings)
    if not given:
        raise click.UsageError("say what to change: --set quota.topics=100; `headrace namespace show` shows it")
    with place.open(create=True) as broker:
        _tell(place, broker.call_all("namespace.config", namespace=name or broker.namespace, settings=given))


def _tell(place: Place, info: Any) -> None:
    out = place.output
    if out.json:
        out.value(info)
        return
    out.line(
        f"namespace {info['namespace']}: topics {info['topics']}, leased {info['leased']}, "
        f"connections {info['connections']}"
    )
    for key, value in flat(info["settings"]):
        out.line(f"{key} = {setting_text(value)}")
