# SPDX-License-Identifier: Apache-2.0
"""The sandbox that a template is built in: made for one command, with the layer that is to become the template."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..clock import boottime
from ..results import Status
from .commands import compose
from .execs import Exec
from .layers import Layer
from .link import life, open_boundary, start_command
from .making import place_of
from .wishes import ExecWish, Wish

if TYPE_CHECKING:
    from .host import Host

STEP_S = 900.0
TAIL = 65536
# Where the server's own pip finds packages; nothing else of its environment goes along.
PASSED_ON = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


async def run_step(
    host: Host, log: Callable[[str], None], argv: Sequence[str], *, cwd: str, env: Mapping[str, str], net: bool,
    layer: Layer,
) -> int:  # fmt: skip
    """Its exit code; 124 if it took longer than STEP_S. What it prints goes to the log, a line at a time."""
    wish = replace(Wish(memory=host.settings.memory * 4), net=net)
    link = await open_boundary(place_of(wish, layer, None), life(boottime() + STEP_S + 60, STEP_S + 60, None))
    try:
        passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        command = compose(ExecWish(tuple(argv), timeout_s=STEP_S, cwd=cwd), {**passed, **env}, "template")
        step = Exec("build", "template", command, shown=" ".join(argv), background=False, tail=TAIL)
        step.follow(start_command(link, command, None), -1)
        rest = ""
        async for _, data in step.subscribe(whole=True):
            *lines, rest = (rest + data.decode("utf-8", "replace")).split("\n")
            for line in lines:
                log(line)
        if rest:
            log(rest)
        result = await step.wait()
        assert result is not None
        if result.status is Status.TIMEOUT:
            log(f"it did not end within {STEP_S:.0f} s and was killed")
            return 124
        return 125 if result.exit_code is None else result.exit_code
    finally:
        link.close()  # which ends it
