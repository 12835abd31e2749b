# SPDX-License-Identifier: Apache-2.0
import socket
import time

tries = 0
while True:
    tries += 1
    try:
        socket.create_connection(("127.0.0.1", 9))
    except OSError as error:
        print(f"WARNING: Retrying (Retry(total={tries})) after connection broken by {error}", flush=True)
    time.sleep(0.2)
