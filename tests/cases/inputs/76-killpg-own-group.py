# id: 76
# kind: cancel-race   form: python-func   limits: timeout=1s
# expectation: signal only groups proven ours (pgid==pid, start time/pidfd checked); recycled or shared group is skipped and reported; host alive
import subprocess
def tool():
    return subprocess.Popen(['sleep', '30'])     # no new session

# ---- naive demonstration (prints FAULT when the naive way fails) ----
import os, signal
pid = os.fork()
if pid == 0:
    os.setsid(); p = tool(); os.killpg(os.getpgid(p.pid), signal.SIGKILL); os._exit(0)
_, st = os.waitpid(pid, 0)
print("FAULT host killed by its own group kill" if os.WIFSIGNALED(st) else "ok")
