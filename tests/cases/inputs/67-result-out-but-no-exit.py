# id: 67
# kind: interpreter-exit-blocked   form: python-func   limits: timeout=2s
# expectation: function form: completed with 42, exit bounded by grace; command form: timed_out but tail has the answer line; survivors=0
import atexit, time
def tool():
    atexit.register(time.sleep, 30)
    print('{"answer": 42}', flush=True)

# ---- naive demonstration (prints FAULT when the naive way fails) ----
import subprocess, sys
if len(sys.argv) > 1: tool(); sys.exit(0)
try: subprocess.run([sys.executable, __file__, "x"], capture_output=True, timeout=2); print("ok")
except subprocess.TimeoutExpired as e: print("FAULT timed out although output was", e.stdout)
