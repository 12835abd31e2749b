# SPDX-License-Identifier: Apache-2.0
import sys
import threading
import time

threading.Thread(target=sys.stdin.read, daemon=True).start()
while True:
    time.sleep(0.3)
