# SPDX-License-Identifier: Apache-2.0
"""Loopback servers that disappoint their clients; prints "name port" for each, then "up"."""

import base64
import hashlib
import socket
import sys
import threading

kept = []


def silent(client):
    kept.append(client)


def headers_only(client):
    client.recv(4096)
    client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
    kept.append(client)


def websocket(client):
    lines = client.recv(4096).split(b"\r\n")
    key = next(line.split(b": ")[1] for line in lines if line.lower().startswith(b"sec-websocket-key"))
    digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    client.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n"
    )
    kept.append(client)


def asks_for_login(client):
    client.recv(4096)
    client.sendall(
        b'HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm="x"\r\n'
        b"Content-Length: 0\r\nConnection: close\r\n\r\n"
    )
    client.close()


def serve(listener, answer):
    while True:
        client, _ = listener.accept()
        threading.Thread(target=answer, args=(client,), daemon=True).start()


for answer in (silent, headers_only, websocket, asks_for_login):
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
    print(answer.__name__, listener.getsockname()[1], flush=True)
print("up", flush=True)
sys.stdin.read()  # ends with the test that started it
