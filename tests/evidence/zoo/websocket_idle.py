# SPDX-License-Identifier: Apache-2.0
import asyncio
import sys


async def main():
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nSec-WebSocket-Key: abc\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    print("open", flush=True)
    await reader.read(1)


asyncio.run(main())
