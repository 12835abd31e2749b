# SPDX-License-Identifier: Apache-2.0
import os
import sqlite3
import sys
import time

ready, told = os.pipe()
if os.fork() == 0:
    holder = sqlite3.connect(sys.argv[1], isolation_level=None)
    holder.execute("create table if not exists t(x)")
    holder.execute("begin immediate")
    os.write(told, b"x")
    time.sleep(1000)
os.read(ready, 1)
waiter = sqlite3.connect(sys.argv[1], timeout=1000, isolation_level=None)
waiter.execute("insert into t values(1)")
