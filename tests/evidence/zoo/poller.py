# SPDX-License-Identifier: Apache-2.0
"""Waits for its input with the call named in the first argument."""

import select
import sys

how = sys.argv[1]
if how == "select":
    select.select([0], [], [])
elif how == "poll":
    poller = select.poll()
    poller.register(0, select.POLLIN)
    poller.poll()
elif how == "epoll":
    epoller = select.epoll()
    epoller.register(0, select.EPOLLIN)
    epoller.poll()
elif how == "select_again":
    while not select.select([0], [], [], 0.5)[0]:
        pass
