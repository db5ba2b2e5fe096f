"""``headrace token``: keys, and the tokens they sign. Works on files; no server is asked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from headrace.cli.values import LIFETIME

VERBS = ("publish", "consume", "admin")
ALGORITHMS = ("EdDSA", "ES256", "RS256", "HS256")
_KEYS = click.option(
    "--keys", "file", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The file of keys."
)


@click.group()
def token() -> None:
    """Keys, and the tokens they sign.

    \b
    headrace token key --keys keys.json                 make a key (and the file)
    headrace token create --keys keys.json --subject billing --verb consume --topic 'orders/#'
    headrace serve --set auth.keys=keys.json            a server that lets in who has a token
    headrace token user --users users.json attic --verb publish --topic 'sensors/attic/#'
    headrace serve --set auth.passwords=users.json      MQTT clients with user name and password as well
    """


@token.command()
@_KEYS
@click.option(
    "--algorithm", type=click.Choice(ALGORITHMS), default="EdDSA", show_default=True, help="What it signs with."
)
@click.option("--kid", help="The key's name; today's date when not given.")
@click.option("--public", is_flag=True, help="Make no key; print the public halves of those in the file.")
def key(file: Path, algorithm: str, kid: str | None, public: bool) -> None:
    """Add a new key to a file, which is made if it is new and readable for you alone."""
    from headrace.frontends.keys import make_key, public_set, save_keys

    if public:
        click.echo(public_set(file).decode(), nl=False)
        return
    if kid is None:
        from datetime import UTC, datetime

        from headrace.clock import SystemClock

        kid = datetime.fromtimestamp(SystemClock().wall_ns() / 1e9, UTC).date().isoformat()
    count = save_keys(file, make_key(algorithm, kid))
    click.echo(f"added key {kid!r} for {algorithm} to {file}, which has {count} now", err=True)


@token.command()
@_KEYS
@click.option("--kid", help="Which key signs; the last one in the file when not given.")
@click.option("--subject", required=True, help="Who the token is for; shown in logs.")
@click.option("--verb", "verbs", multiple=True, type=click.Choice(VERBS), required=True, help="May be repeated.")
@click.option("--namespace", "namespaces", multiple=True, help="May be repeated; default when not given, * for all.")
@click.option("--topic", "topics", multiple=True, metavar="PATTERN", help="May be repeated; all when not given.")
@click.option("--ttl", type=LIFETIME, default="30d", show_default=True, metavar="SPAN", help="How long it is good.")
@click.option("--issuer", default="headrace", show_default=True, help="As the server's auth.issuer.")
@click.option("--audience", default="headrace", show_default=True, help="As the server's auth.audience.")
def create(
    file: Path,
    kid: str | None,
    subject: str,
    verbs: tuple[str, ...],
    namespaces: tuple[str, ...],
    topics: tuple[str, ...],
    ttl: int,
    issuer: str,
    audience: str,
) -> None:
    """Sign a token and print it."""
    from headrace.clock import SystemClock
    from headrace.errors import InvalidArgument
    from headrace.frontends.keys import load_keys
    from headrace.frontends.tokens import make_token

    keys = load_keys(file)
    chosen = keys.get(kid) if kid is not None else list(keys.values())[-1]
    if chosen is None:
        raise InvalidArgument(f"there is no key {kid!r} in {file}; there are {', '.join(keys)}")
    grant: dict[str, Any] = {"verbs": list(verbs)}
    if namespaces:
        grant["namespaces"] = list(namespaces)
    if topics:
        grant["topics"] = list(topics)
    made = make_token(
        chosen,
        subject=subject,
        grants=[grant],
        now_ns=SystemClock().wall_ns(),
        ttl_ns=ttl,
        issuer=issuer,
        audience=audience,
    )
    click.echo(made)


@token.command()
@click.argument("text", metavar="TOKEN|-")
@click.option(
    "--keys", "file", type=click.Path(path_type=Path), metavar="FILE", help="Also check it, as a server would."
)
@click.option("--issuer", default="headrace", show_default=True, help="As the server's auth.issuer.")
@click.option("--audience", default="headrace", show_default=True, help="As the server's auth.audience.")
@click.option("--json", "in_a_line", is_flag=True, help="One JSON value on one line.")
def inspect(text: str, file: Path | None, issuer: str, audience: str, in_a_line: bool) -> None:
    """Show what a token says; with --keys also whether it is good. ``-`` reads it from stdin."""
    import msgspec

    from headrace.config import AuthConfig
    from headrace.frontends.tokens import TokenCheck, read_token

    given = sys.stdin.readline().strip() if text == "-" else text
    header, claims = read_token(given)
    verdict: dict[str, Any] = {"header": header, "claims": claims}
    if file is not None:
        TokenCheck(AuthConfig(keys=str(file), issuer=issuer, audience=audience)).principal_of(given)
        verdict["good"] = True
    told = msgspec.json.encode(verdict)
    click.echo((told if in_a_line else msgspec.json.format(told, indent=2)).decode())


@token.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--users", "file", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The file of users."
)
@click.option("--verb", "verbs", multiple=True, type=click.Choice(VERBS), help="May be repeated.")
@click.option("--namespace", "namespaces", multiple=True, help="May be repeated; default when not given, * for all.")
@click.option("--topic", "topics", multiple=True, metavar="PATTERN", help="May be repeated; all when not given.")
@click.option("--certificate", is_flag=True, help="Let in by a client certificate with this common name; no password.")
@click.option("--password-stdin", is_flag=True, help="Read the password from stdin instead of asking for it.")
@click.option("--remove", is_flag=True, help="Take the user out.")
def user(
    name: str,
    file: Path,
    verbs: tuple[str, ...],
    namespaces: tuple[str, ...],
    topics: tuple[str, ...],
    certificate: bool,
    password_stdin: bool,
    remove: bool,
) -> None:
    """Put a user of MQTT into a file of users (auth.passwords), with a hashed password; or change or remove one."""
    from headrace.errors import InvalidArgument
    from headrace.frontends.passwords import hash_password, remove_user, save_user

    if remove:
        click.echo(f"removed user {name!r} from {file}, which has {remove_user(file, name)} now", err=True)
        return
    if not verbs:
        raise InvalidArgument(f"what may {name!r} do? Say --verb publish, --verb consume or --verb admin")
    grant: dict[str, Any] = {"verbs": list(verbs)}
    if namespaces:
        grant["namespaces"] = list(namespaces)
    if topics:
        grant["topics"] = list(topics)
    entry: dict[str, Any] = {"name": name, "grants": [grant]}
    if certificate:
        entry["certificate"] = True
    else:
        given = (
            sys.stdin.readline().rstrip("\r\n")
            if password_stdin
            else click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        )
        entry["password"] = hash_password(given.encode())
    click.echo(f"user {name!r} is in {file}, which has {save_user(file, entry)} now", err=True)
