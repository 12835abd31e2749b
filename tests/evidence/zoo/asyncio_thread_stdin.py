# SPDX-License-Identifier: Apache-2.0
import asyncio
import sys


async def main():
    print("name? ", end="", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


asyncio.run(main())
