# SPDX-License-Identifier: Apache-2.0
"""mob.c for machines without a C compiler."""

import os
import signal
import sys
import time

end = time.time() + 60


def be_hostile(number: int) -> None:
    while number % 10 == 0 and time.time() < end:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.005)
    while time.time() < end:
        time.sleep(60)
    os._exit(0)


wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 200
for which in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(which, signal.SIG_IGN)
up_read, up_write = os.pipe()
for number in range(wanted):
    child = os.fork()
    if child == 0:
        os.setsid()
        if number % 2:
            if os.fork():
                os._exit(0)
            os.setsid()
        os.write(up_write, b"x")
        be_hostile(number)
    if number % 2:
        os.waitpid(child, 0)
left = wanted
while left:
    left -= len(os.read(up_read, left))
os.write(1, b"READY\n")
time.sleep(60)
