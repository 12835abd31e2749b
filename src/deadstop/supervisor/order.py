# SPDX-License-Identifier: Apache-2.0
"""A command and the ceilings of its boundary as what init is told."""

from __future__ import annotations

from ..boundary import payload
from ..boundary.limits import Applied
from ..model import Command


def of(command: Command, applied: Applied, *, joins: bool) -> payload.Request:
    return payload.request(
        list(command.argv), command.env, cwd=command.cwd, umask=command.umask, nice=command.nice,
        oom_score_adj=command.oom_score_adj, open_files=command.open_files,
        rlimits=[*applied.rlimits, *command.rlimits],
        affinity=sorted(applied.affinity) if applied.affinity else None, tty=command.tty is not None, joins=joins,
    )  # fmt: skip
