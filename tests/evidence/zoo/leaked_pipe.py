# SPDX-License-Identifier: Apache-2.0
import os
import time

reader, writer = os.pipe()
if os.fork() == 0:
    time.sleep(1000)
os.close(writer)
os.read(reader, 1)
