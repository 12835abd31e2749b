# SPDX-License-Identifier: Apache-2.0
import asyncio
import sys


async def main():
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("name? ", end="", flush=True)
    await reader.readline()


asyncio.run(main())
