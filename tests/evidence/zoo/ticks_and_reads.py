# SPDX-License-Identifier: Apache-2.0
"""Asks, beside a thread that never rests, as many runtimes have one."""

import threading
import time


def tick():
    while True:
        time.sleep(0.02)


threading.Thread(target=tick, daemon=True).start()
input("Name? ")
