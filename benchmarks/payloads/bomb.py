# SPDX-License-Identifier: Apache-2.0
"""bomb.c for machines without a C compiler. Only to be run under a limit on processes; it ends by itself."""

import os
import signal
import sys
import time

for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
os.write(1, b"READY\n")
if "leave" in sys.argv and os.fork():
    sys.exit()
end = time.monotonic() + 12
while time.monotonic() < end:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
