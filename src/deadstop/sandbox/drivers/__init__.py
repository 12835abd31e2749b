# SPDX-License-Identifier: Apache-2.0
"""What is sent into sandboxes and run there, without this package: standard library only, Python 3.9 or later."""

from __future__ import annotations

# For `python3 -u -c BOOT size`: takes the program from the beginning of stdin, not a byte more, and calls its `main`.
BOOT = """import os, sys
left, parts = int(sys.argv[1]), []
while left:
    parts.append(os.read(0, left))
    left -= len(parts[-1]) or sys.exit("the driver did not come whole")
space = {"__name__": "deadstop_driver"}
exec(compile(b"".join(parts), "<deadstop>", "exec"), space)
space["main"]()
"""
