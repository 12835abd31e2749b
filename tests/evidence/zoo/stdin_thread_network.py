# SPDX-License-Identifier: Apache-2.0
import socket
import sys
import threading

threading.Thread(target=sys.stdin.read, daemon=True).start()
socket.create_connection(("127.0.0.1", int(sys.argv[1]))).recv(1)
