# SPDX-License-Identifier: Apache-2.0
"""hello.c for machines without a C compiler."""

import os
import sys
import time

how = sys.argv[1] if len(sys.argv) > 1 else ""
if how == "leave" and os.fork() == 0:
    time.sleep(60)
    sys.exit()
os.write(1, b"READY\n")
if not how:
    time.sleep(60)
