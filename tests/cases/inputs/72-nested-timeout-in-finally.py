# id: 72
# kind: nested-timeouts   form: python-func   limits: timeout=1s
# expectation: child budget = min(own, parent remaining + one grace): ends <=1s+grace(1s); report names which limit fired (outer)
import asyncio
async def tool():
    try: await asyncio.sleep(10)
    finally:
        try:
            async with asyncio.timeout(3): await asyncio.sleep(10)
        except TimeoutError: pass

# ---- naive demonstration (prints FAULT when the naive way fails) ----
import time
async def main():
    try:
        async with asyncio.timeout(1): await tool()
    except TimeoutError: pass
t0 = time.time(); asyncio.run(main())
dt = time.time() - t0; print("FAULT" if dt > 2 else "ok", "outer 1s limit ended after %.2fs" % dt)
