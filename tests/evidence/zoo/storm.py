# SPDX-License-Identifier: Apache-2.0
"""Forks without end; only ever started inside a control group with a limit."""

import os
import time

while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.005)
