# SPDX-License-Identifier: Apache-2.0
"""`deadstop audit`: whether the sum of all operations is right, and whether the ledger still is what was written.

Nothing here but `rotate` writes to a ledger, so it is also for a copy, and for somebody who may only read it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .. import clock
from ..errors import UsageError
from . import audit_rotate, common
from .tables import shown

if TYPE_CHECKING:
    from ..ledger.report import Report

_SHOWN = 20
_FIRST_S, _AGAIN_S = 0.5, 0.2
_WHAT = {
    "verify": "check every hash, the order of the log, its checkpoints, and that the tables follow from it",
    "export": "write the log as lines of JSON that are verified without the database",
    "proof": "write what proves one operation's entries, or that the log only grew, to somebody who has only the "
             "public key",
    "rotate": "let a new signing key take the place of the old one",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = ("Without more words: exit status 0 when every operation is accounted for and nothing waits for a "
                     "person, 1 otherwise.")  # fmt: skip
    _add_place(parser, None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    what = parser.add_subparsers(dest="what", metavar="WHAT", parser_class=type(parser))
    for name, text in _WHAT.items():
        one = what.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
        _add_place(one, argparse.SUPPRESS)
        one.add_argument("--checkpoints", metavar="FILE", help="the signed checkpoints (default: DEADSTOP_CHECKPOINTS, "
                         "or beside the ledger)")  # fmt: skip
        if name == "rotate":
            audit_rotate.add_arguments(one)
            continue
        one.add_argument("--key", metavar="FILE", help="the public keys, one a line (default: the ledger's own)")
        {"verify": _add_verify, "export": _add_export, "proof": _add_proof}[name](one)


def _add_place(parser: argparse.ArgumentParser, default: Any) -> None:
    parser.add_argument("--ledger", metavar="PLACE", default=default, help="a file or a postgresql:// URL (default: "
                        "DEADSTOP_LEDGER, or the one in your state folder)")  # fmt: skip


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Exit status: 0 when everything fits, 1 when something does not, 125 when it cannot be read."
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object")
    parser.add_argument("--log-only", action="store_true", help="leave out the comparison with the tables")
    parser.add_argument("file", nargs="?", metavar="FILE", help="what `audit export` or `audit proof` wrote")


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="a new file (default: standard output)")


def _add_proof(parser: argparse.ArgumentParser) -> None:
    parser.epilog = ("With --since: that the log of --size entries begins with the one of --since entries. Both must "
                     "be sizes of checkpoints.")  # fmt: skip
    parser.add_argument("operation", nargs="?", metavar="OP_ID", help="its id, or a beginning of it that is enough")
    parser.add_argument("--since", metavar="N", type=int, help="a size of the log that you know a checkpoint of")
    parser.add_argument("--size", metavar="N", type=int, help="a later one (default: that of the last checkpoint)")


def execute(arguments: argparse.Namespace) -> int:
    run: dict[str | None, Callable[[argparse.Namespace], int]] = {
        None: _sum, "verify": _verify, "export": _export, "proof": _proof,
        "rotate": lambda arguments: audit_rotate.execute(arguments, _place(arguments)),
    }  # fmt: skip
    return run[arguments.what](arguments)


def _place(arguments: argparse.Namespace) -> str:
    from ..ledger.store import default_place

    return arguments.ledger or default_place()


# -- the sum -------------------------------------------------------------------------------------------------------


def _sum(arguments: argparse.Namespace) -> int:
    from ..ledger import alerts, reading
    from ..ledger.reader import opened
    from ..ledger.states import State

    def work(tx: Any) -> dict[str, Any]:
        waiting = reading.listed(tx, [State.NEEDS_HUMAN])
        return {
            **reading.conservation(tx),
            "waiting": [{"operation": each.op_id, "tool": each.tool, "target": each.target} for each in waiting],
            "alerts": [{"kind": each.kind, "operation": each.op_id, "detail": each.detail}
                       for each in alerts.list_alerts(tx)],
            "silent": [{"name": each.name, "silent_s": (tx.now - each.at_ms) // 1000}
                       for each in alerts.beats(tx) if each.late(tx.now)],
        }  # fmt: skip

    with opened(_place(arguments)) as reader:
        found = {"ledger": reader.where, **reader.read(work)}
    asked_by_nobody = found["silent"] and found["states"].get(State.UNKNOWN)
    attention = found["lapsed"] or found["waiting"] or found["alerts"] or asked_by_nobody
    found["ok"] = bool(found["holds"]) and not attention
    if arguments.json:
        common.print_json(found)
    else:
        print("\n".join(_sum_lines(found)))
    return 0 if found["ok"] else 1


def _sum_lines(found: dict[str, Any]) -> list[str]:
    states = ", ".join(f"{count} {state}" for state, count in found["states"].items() if count)
    lines = [
        f"ledger    {found['ledger']}",
        f"sum       {found['started']} started = {found['ended']} ended + {found['open']} open"
        + ("" if found["holds"] else ": it does NOT hold"),
    ]
    lines += [f"states    {states}"] if states else []
    for name, text in (
        ("attempts_without_end", "attempts have no end"),
        ("lapsed", "are past a deadline, not swept yet"),
    ):
        lines += [f"attention {found[name]} {text}"] if found[name] else []
    lines += [f"attention {shown(each)} is open without a deadline" for each in found["without_deadline"]]
    lines += [f"attention the {shown(each['name'])} has been silent for {each['silent_s']} s: is a server running?"
              for each in found["silent"] if found["open"]]  # fmt: skip
    lines += [_waiting_line(each) for each in found["waiting"][:_SHOWN]]
    lines += [f"alert     {shown(each['kind'])} {shown(each['operation'])}: {shown(each['detail'])}"
              for each in found["alerts"][:_SHOWN]]  # fmt: skip
    more = sum(max(0, len(found[name]) - _SHOWN) for name in ("waiting", "alerts"))
    return [*lines, f"and {more} more"] if more else lines


def _waiting_line(each: dict[str, Any]) -> str:
    on = f" on {shown(each['target'])}" if each["target"] else ""
    return f"attention {each['operation']} ({shown(each['tool'])}{on}) waits for a person: deadstop ops resolve"


# -- verifying -----------------------------------------------------------------------------------------------------


def _verify(arguments: argparse.Namespace) -> int:
    if arguments.file is not None and _is_proof(arguments.file):
        return _verify_proof(arguments)
    with _progress() as progress:
        report = _checked(arguments, progress)
    if arguments.json:
        common.print_json(report.to_dict())
        return 0 if report.ok else 1
    print("\n".join(_report_lines(report, arguments)))
    return 0 if report.ok else 1


def _checked(arguments: argparse.Namespace, progress: Any) -> Report:
    if arguments.file is not None:
        from ..ledger.export import verify_export

        return verify_export(arguments.file, arguments.key, arguments.checkpoints, progress=progress)
    from ..ledger.verify import verify

    return verify(
        _place(arguments), arguments.checkpoints, arguments.key, full=not arguments.log_only, progress=progress
    )


def _report_lines(report: Report, arguments: argparse.Namespace) -> list[str]:
    lines = [shown(str(each)) for each in report.problems]
    lines.append(
        f"{'ok' if report.ok else f'{len(report.problems)} problems'}: {report.leaves} entries of {report.operations} "
        f"operations, {report.anchored_size} of them covered by {report.checkpoints} signed checkpoints"
    )
    if report.unanchored:
        lines.append(f"note: nothing signed covers the last {report.unanchored} entries yet")
    if report.waiting:
        lines.append(f"note: {report.waiting} entries have no place in the log yet")
    if arguments.file is not None and arguments.key is None:
        lines.append("note: the key was taken from the file itself; give --key to know who signed")
    if not report.full and arguments.file is None:
        lines.append("note: the tables were not compared with the log")
    return lines + audit_rotate.key_lines(report)


def _is_proof(path: str) -> bool:
    from ..ledger.consistency import CONSISTENCY
    from ..ledger.export import PROOF

    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            begins = file.read(200)
    except OSError as problem:
        raise UsageError(f"{path}: {problem.strerror or problem}") from None
    return any(f'"{each}"' in begins for each in (PROOF, CONSISTENCY))


def _verify_proof(arguments: argparse.Namespace) -> int:
    from ..ledger.consistency import CONSISTENCY, verify_growth_proof
    from ..ledger.export import verify_operation_proof

    try:
        with open(arguments.file, encoding="utf-8") as file:
            document = json.load(file)
    except (ValueError, RecursionError):
        raise UsageError(f"{arguments.file}: this is no JSON") from None
    grew = isinstance(document, dict) and document.get("format") == CONSISTENCY
    if grew:
        problems = verify_growth_proof(document, arguments.key, arguments.checkpoints)
    else:
        problems = verify_operation_proof(document, arguments.key)
    if arguments.json:
        listed = [{"kind": each.kind, "where": each.where, "text": each.text} for each in problems]
        about = {name: document.get(name) for name in (("first", "size") if grew else ("operation",))}
        common.print_json({"ok": not problems, **about, "problems": listed})
    else:
        print("\n".join([shown(str(each)) for each in problems] or [_proved(document, grew, arguments)]))
    return 1 if problems else 0


def _proved(document: dict[str, Any], grew: bool, arguments: argparse.Namespace) -> str:
    note = "" if arguments.key else "\nnote: the key was taken from the file itself; give --key to know who signed"
    if grew:
        return f"ok: the signed log of {document['size']} entries begins with that of {document['first']}{note}"
    return f"ok: {len(document['entries'])} entries of {shown(str(document['operation']))} are in the signed log{note}"


# -- handing out ---------------------------------------------------------------------------------------------------


def _export(arguments: argparse.Namespace) -> int:
    from ..ledger.export import export

    with _output(arguments.file) as file, _progress() as progress:
        count = export(_place(arguments), file, checkpoints=arguments.checkpoints, key=arguments.key, progress=progress)
    if arguments.file is not None:
        common.say(f"{count} entries in {arguments.file}")
    return 0


@contextlib.contextmanager
def _output(path: str | None) -> Iterator[Any]:
    """Standard output, or a new file that is only there when it is whole."""
    if path is None:
        yield sys.stdout
        return
    if os.path.exists(path):
        raise UsageError(f"{path} is there already; name a new file")
    part = f"{path}.part"
    try:
        with open(part, "w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, path)
    except OSError as problem:
        raise UsageError(f"{path}: {problem.strerror or problem}") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)


def _proof(arguments: argparse.Namespace) -> int:
    from ..ledger import reading
    from ..ledger.consistency import growth_proof
    from ..ledger.export import operation_proof
    from ..ledger.reader import opened

    if (arguments.operation is None) == (arguments.since is None):
        raise UsageError("name an operation, or --since N, the size of a log")
    if arguments.size is not None and arguments.since is None:
        raise UsageError("--size goes with --since")
    more = {"checkpoints": arguments.checkpoints, "key": arguments.key}
    with opened(_place(arguments)) as reader:
        if arguments.since is not None:
            common.print_json(growth_proof(reader, arguments.since, arguments.size, **more))
            return 0
        op_id = reader.read(lambda tx: reading.matching(tx, arguments.operation)).op_id
        common.print_json(operation_proof(reader, op_id, **more))
    return 0


# -- people --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A line on the terminal that says how far it is, when it takes longer than a moment. Never in a file or a pipe."""
    shown, due = False, clock.monotonic() + _FIRST_S

    def tell(what: str, done: int, total: int) -> None:
        nonlocal shown, due
        now = clock.monotonic()
        if now >= due and sys.stderr.isatty():
            shown, due = True, now + _AGAIN_S
            print(f"\r\x1b[K{what}: {done:,} of {total:,}", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
