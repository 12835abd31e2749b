# SPDX-License-Identifier: Apache-2.0
"""A client and a server in one tree; the server's second argument decides what it does after accept."""

import os
import socket
import sys
import time

listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    client, _ = listener.accept()
    listener.close()
    if sys.argv[1] == "sleeps":
        time.sleep(1000)
    client.recv(1)
address = listener.getsockname()
listener.close()
socket.create_connection(address).recv(1)
