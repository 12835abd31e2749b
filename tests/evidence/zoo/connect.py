# SPDX-License-Identifier: Apache-2.0
"""Connects to HOST PORT and reads; a third argument "tls" or "send" does that first."""

import socket
import ssl
import sys

connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
how = sys.argv[3] if len(sys.argv) > 3 else ""
if how == "tls":
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = context.wrap_socket(connection)
while how == "send":
    connection.sendall(b"x" * 65536)
connection.recv(1)
