# SPDX-License-Identifier: Apache-2.0
import sys
import threading

threading.Thread(target=sys.stdin.read, daemon=True).start()
count = 0
while True:
    count += 1
