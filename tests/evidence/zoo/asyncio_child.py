# SPDX-License-Identifier: Apache-2.0
import asyncio
import sys


async def main():
    child = await asyncio.create_subprocess_exec(*sys.argv[1:])
    await child.wait()


asyncio.run(main())
