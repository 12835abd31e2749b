# SPDX-License-Identifier: Apache-2.0
"""Waits for a lock on the file named first, held by its own child; the second argument says how."""

import fcntl
import os
import sys
import time

take = {"flock": fcntl.flock, "lockf": fcntl.lockf}[sys.argv[2]]
ready, told = os.pipe()
if os.fork() == 0:
    mine = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
    take(mine, fcntl.LOCK_EX)
    os.write(told, b"x")
    time.sleep(1000)
os.read(ready, 1)
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
take(file, fcntl.LOCK_EX)
