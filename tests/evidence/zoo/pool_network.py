# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import socket
import sys


def fetch(_):
    socket.create_connection(("127.0.0.1", int(sys.argv[1]))).recv(1)


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(fetch, range(4)))
