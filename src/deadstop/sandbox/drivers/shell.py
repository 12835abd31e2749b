# SPDX-License-Identifier: Apache-2.0
r"""A bash that keeps its state between runs, without anything but bash in the sandbox.

It reads commands of ours from its stdin: each run is read as data and given to `eval` whole, so that what is not
complete is a syntax error and cannot take what follows it for its own. While it runs, stdin is empty and the channel's
descriptors are closed for it and for what it starts. On stdout and stderr each run lies between two frames
(`\x1e<mark> .<exit status>\n`); bash has not read the second mark before the code has ended.
"""

from __future__ import annotations

ARGV = ("bash", "--noprofile", "--norc", "-s")

# 198 and 199 are stdout and stderr whatever the code makes of 1 and 2. A failed `exec` must not end the session.
PRELUDE = rb"""exec 198>&1 199>&2
shopt -s execfail
__deadstop_status=0
__deadstop_return() { \builtin return "$1"; }
"""

_BEGIN = rb"""{ \builtin printf '\036%s .\n' BEGIN >&198; \builtin printf '\036%s .\n' BEGIN >&199; } 2>/dev/null
IFS= \builtin read -r -d '' __deadstop_code
"""
# `$?` is that of the run before. After a syntax error bash takes the first word of the next line for no keyword.
_EVAL = rb"""__deadstop_return "$__deadstop_status"; \builtin eval "$__deadstop_code" 0</dev/null 198>&- 199>&-
__deadstop_status=$? 2>/dev/null
"""
_END = rb"""{ \builtin printf '\036%s .\n' END >&199
\builtin printf '\036%s .%d\n' END "$__deadstop_status" >&198; } 2>/dev/null
"""


def request(code: bytes, begin: bytes, end: bytes) -> bytes:
    """What to write for one run. The code has no NUL bytes."""
    return b"".join((_BEGIN.replace(b"BEGIN", begin), code, b"\0", _EVAL, _END.replace(b"END", end)))
