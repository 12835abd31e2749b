# id: 73
# kind: clock/suspend   form: python-func   limits: timeout=1s
# expectation: deadline on monotonic clock (timed_out at 1s +-0.3); after SIGSTOP/suspend of the supervisor for 5s the overdue call is killed at once and the gap is recorded
import time
def tool():
    time.sleep(0.05)

# ---- naive demonstration (prints FAULT when the naive way fails) ----
real = time.time; off = [0]
time.time = lambda: real() + off[0]
end = time.time() + 1; n = 0; t0 = time.monotonic()
while time.time() < end and n < 80:
    tool(); n += 1
    if n == 5: off[0] = -3600          # NTP step back
dt = time.monotonic() - t0
print("FAULT" if dt > 2 else "ok", "1s limit still not reached after %.1fs" % dt)
