# SPDX-License-Identifier: Apache-2.0
"""`deadstop serve`: keep sandboxes for clients, over a unix socket and, where asked for, TCP."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..places import LEDGER_VARIABLE, SECRET_VARIABLE, STATE_VARIABLE, TOKEN_VARIABLE, socket_path, state_folder
from . import common

if TYPE_CHECKING:
    from ..server.serve import Listening
    from ..server.settings import LedgerSettings, Settings

MIB = 1 << 20
NICE = -5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        f"A unix socket is for its own user alone. TCP needs the token in {TOKEN_VARIABLE}; without one it is "
        "made, and shown once. On SIGTERM or Ctrl-C every sandbox is ended before the server goes. Needs "
        "deadstop[server]."
    )
    _listening(parser.add_argument_group("where it listens"))
    _defaults(parser.add_argument_group("what a client gets that does not say"))
    _ceilings(parser.add_argument_group("ceilings"))
    _keeping(parser.add_argument_group("how sandboxes are kept"))
    _ledger(parser.add_argument_group("the ledger of operations with effects"))
    parser.add_argument("--log-format", choices=("json", "text"), default="json", help="of the log on stderr")


def _listening(group: Any) -> None:
    add = group.add_argument
    add("--listen", type=_address, metavar="HOST:PORT", help="TCP as well; port 0 takes a free one")
    add("--allow-host", action="append", default=[], metavar="NAME",
        help="a name that clients may call the server by, besides localhost and the address (repeatable)")  # fmt: skip
    add("--socket", metavar="PATH", help="the unix socket (default: below /run, XDG_RUNTIME_DIR or the state folder)")
    add("--no-socket", action="store_true", help="no unix socket")


def _defaults(group: Any) -> None:
    add = group.add_argument
    add("--network", choices=("off", "host", "never"), default="off",
        help="of sandboxes whose client does not say: none (default), or this host's with its loopback; never: none, "
        "whoever asks")  # fmt: skip
    add("--default-ttl", type=common.seconds, metavar="TIME", help="how long a sandbox lives (default: 1h)")
    add("--template-config", metavar="FILE",
        help="JSON or TOML: template (or '*') -> keys of a create request, for clients that cannot ask")  # fmt: skip


def _ceilings(group: Any) -> None:
    add = group.add_argument
    add("--max-ttl", type=common.seconds, metavar="TIME", help="of a whole life, extensions included (default: 5h)")
    add("--max-sandboxes", type=common.count, metavar="N", help="how many live at once (default: 512)")
    add(
        "--max-memory", type=common.size, metavar="SIZE", help="sum of their ceilings (default: what the host has free)"
    )
    add("--max-body", type=common.size, metavar="SIZE", help="a file in one request (default: 32M)")


def _keeping(group: Any) -> None:
    add = group.add_argument
    add("--state", metavar="DIR", help=f"the state folder (default: {STATE_VARIABLE}, /var/lib/deadstop for root, "
        "XDG_STATE_HOME/deadstop for others)")  # fmt: skip
    add("--warm", type=_zero_or_more, metavar="N", help="sandboxes held ready (default: none)")
    add("--warm-template", metavar="NAME", help="of which template (default: base)")
    add("--retention", type=common.seconds, metavar="TIME",
        help="how long the output of an ended one can be read (default: 1h)")  # fmt: skip
    add("--layers", choices=("btrfs", "overlay", "folder"), help="how files are kept (default: the best there is)")
    add("--disk-image-size", type=common.size, metavar="SIZE", help="of the btrfs image, where one is made")


def _ledger(group: Any) -> None:
    add = group.add_argument
    add("--ledger", metavar="PLACE", help=f"a file or a postgresql:// URL (default: {LEDGER_VARIABLE}, else ledger.db "
        "in the state folder)")  # fmt: skip
    add("--no-ledger", action="store_true", help="keep none")
    add("--webhook", action="append", default=[], metavar="URL",
        help=f"gets the events of operations, CloudEvents signed with {SECRET_VARIABLE} (repeatable)")  # fmt: skip
    add("--keep-events", type=common.seconds, metavar="TIME", help="how long a sent one is known (default: 720h)")
    add("--alert-webhook", action="append", default=[], metavar="URL",
        help="is told once of what needs a person (repeatable)")  # fmt: skip
    add("--alert-command", action="append", default=[], metavar="COMMAND",
        help="started for each such alert, not by a shell; JSON is on its stdin and in DEADSTOP_ALERT")  # fmt: skip
    add("--alert-url", action="append", default=[], metavar="URL",
        help="any that apprise knows; needs deadstop[alerts] (repeatable)")  # fmt: skip


def execute(arguments: argparse.Namespace) -> int:
    import asyncio

    serve = _server()
    _keep_mounts_private()
    _go_before_payloads()
    _log(arguments.log_format)
    asyncio.run(serve(_settings(arguments), _announce))
    return 0


def _keep_mounts_private() -> None:
    """Before anything else has a thread or a process: mounts of ours are to go with us, however we end."""
    from ..sandbox.layers import private_mounts

    private_mounts()


def _go_before_payloads() -> None:
    """As root: an answer must not wait behind what hundreds of processes inside are doing. They get nice 0."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    except PermissionError:
        pass


def _server() -> Any:
    try:
        from ..server.serve import serve
    except ImportError as problem:
        if (problem.name or "").partition(".")[0] == "deadstop":
            raise
        raise UsageError(f"serve needs the package {problem.name}: install deadstop[server]") from None
    return serve


def _settings(arguments: argparse.Namespace) -> Settings:
    from ..sandbox.settings import Settings as Host
    from ..server.settings import Settings

    state = os.path.abspath(arguments.state) if arguments.state else state_folder()
    kept = _given(
        state=state, default_ttl_s=arguments.default_ttl, max_ttl_s=arguments.max_ttl,
        max_sandboxes=arguments.max_sandboxes, max_memory=arguments.max_memory, retention_s=arguments.retention,
        warm=arguments.warm, warm_template=arguments.warm_template, layers=arguments.layers,
        image_size=arguments.disk_image_size, net=arguments.network == "host",
        net_allowed=arguments.network != "never",
    )  # fmt: skip
    return Settings(
        host=Host(**kept),
        ledger=_ledger_settings(arguments, state),
        socket=_socket(arguments),
        listen=arguments.listen,
        token=os.environ.pop(TOKEN_VARIABLE, None) or None,  # nothing that is started may inherit it
        allowed_hosts=frozenset(arguments.allow_host),
        templates=_templates(arguments.template_config),
        **_given(file_bytes=arguments.max_body),
    )


def _ledger_settings(arguments: argparse.Namespace, state: str) -> LedgerSettings | None:
    from ..server.settings import LedgerSettings

    secret = os.environ.pop(SECRET_VARIABLE, None) or None  # nothing that is started may inherit it
    named = arguments.ledger or os.environ.get(LEDGER_VARIABLE)
    told = [*arguments.webhook, *arguments.alert_webhook, *arguments.alert_command, *arguments.alert_url]
    if arguments.no_ledger:
        if arguments.ledger or told:
            raise UsageError("--no-ledger: there is nothing that --ledger, --webhook or --alert-... could be for")
        return None
    return LedgerSettings(
        place=named or os.path.join(state, "ledger.db"),
        required=bool(named or told),
        webhooks=tuple(arguments.webhook),
        secret=secret,
        alert_webhooks=tuple(arguments.alert_webhook),
        alert_commands=tuple(_words(text) for text in arguments.alert_command),
        alert_urls=tuple(arguments.alert_url),
        **_given(keep_events_s=arguments.keep_events),
    )


def _words(text: str) -> tuple[str, ...]:
    import shlex

    try:
        words = tuple(shlex.split(text))
    except ValueError as problem:
        raise UsageError(f"--alert-command: {text!r:.80}: {problem}") from None
    if not words:
        raise UsageError("--alert-command: it is empty")
    return words


def _socket(arguments: argparse.Namespace) -> str | None:
    if arguments.no_socket:
        if arguments.socket:
            raise UsageError("--socket and --no-socket: give one of the two")
        return None
    return os.path.abspath(arguments.socket) if arguments.socket else socket_path(arguments.state)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _templates(path: str | None) -> Mapping[str, Mapping[str, Any]]:
    if path is None:
        return {}
    try:
        with open(path, "rb") as file:
            data = file.read(MIB)
        found = _parsed(data, toml=path.endswith(".toml"))
    except (OSError, ValueError) as problem:
        raise UsageError(f"--template-config: {path}: {problem}") from None
    if not isinstance(found, dict) or not all(isinstance(keys, dict) for keys in found.values()):
        raise UsageError(f"--template-config: {path}: it must map templates to keys of a create request")
    return found


def _parsed(data: bytes, *, toml: bool) -> Any:
    if toml:
        import tomllib

        return tomllib.loads(data.decode())
    return json.loads(data)


def _log(kind: str) -> None:
    from ..server.logs import LOG, log_to

    log_to(sys.stderr)
    if kind == "text":
        LOG.handlers[0].setFormatter(_text())


def _one_line(value: object) -> str:
    """Paths come from whoever can connect: none may look like another line of the log, or move a terminal's cursor."""
    text = str(value)
    return text if text.isprintable() else ascii(text)


def _text() -> Any:
    import logging

    class Text(logging.Formatter):
        """`time level event key=value ...`"""

        def format(self, record: logging.LogRecord) -> str:
            facts = " ".join(f"{name}={_one_line(value)}" for name, value in getattr(record, "facts", {}).items())
            return f"{super().format(record)} {facts}".rstrip()

    return Text("%(asctime)s %(levelname)s %(message)s")


def _announce(listening: Listening) -> None:
    """On stdout, so that a script can read it; the token is shown here and nowhere else."""
    lines = [f"deadstop: listening on {url}\n" for url in listening.urls]
    if listening.made_token:
        lines.append(f"deadstop: token {listening.made_token} (for clients: {TOKEN_VARIABLE}; not shown again)\n")
    sys.stdout.write("".join(lines))
    sys.stdout.flush()


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not HOST:PORT, such as 127.0.0.1:8080")
    return host, int(port)


def _zero_or_more(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a whole number")
    return int(text)
