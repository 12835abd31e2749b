# id: 24
# kind: memory   form: script   limits: mem=256MB timeout=5s
# expectation: with mem limit 256MB: status=memory_limit (not generic 137), child dead, supervisor alive, siblings unaffected; never prints 'held 16'; survivors=0
import time
blobs = []
for _ in range(16):            # 800 MB at most
    blobs.append(bytearray(b'x') * (50 << 20))
    time.sleep(0.02)
print('held', len(blobs), flush=True); time.sleep(40)
