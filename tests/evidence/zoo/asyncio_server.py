# SPDX-License-Identifier: Apache-2.0
import asyncio


async def tick():
    while True:
        await asyncio.sleep(100)


async def main():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    background = asyncio.create_task(tick())
    await server.serve_forever()
    await background


asyncio.run(main())
