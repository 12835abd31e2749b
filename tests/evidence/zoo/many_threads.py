# SPDX-License-Identifier: Apache-2.0
import socket
import sys
import threading
import time

for _ in range(40):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
socket.create_connection(("127.0.0.1", int(sys.argv[1]))).recv(1)
