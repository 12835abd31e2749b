# SPDX-License-Identifier: Apache-2.0
"""Parent and child read from each other and nobody speaks first."""

import os
import socket

here, there = socket.socketpair()
if os.fork() == 0:
    here.close()
    there.recv(1)
there.close()
here.recv(1)
