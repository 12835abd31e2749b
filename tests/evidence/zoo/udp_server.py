# SPDX-License-Identifier: Apache-2.0
import socket

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 0))
server.recvfrom(100)
