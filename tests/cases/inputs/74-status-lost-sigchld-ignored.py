# id: 74
# kind: unknown-outcome   form: python-func   limits: timeout=2s
# expectation: exit=3 (own reaper/pidfd) or outcome=unknown reason=status_lost; never 0
import subprocess
def tool():
    return subprocess.run(['sh', '-c', 'exit 3']).returncode

# ---- naive demonstration (prints FAULT when the naive way fails) ----
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
rc = tool(); print("FAULT" if rc == 0 else "ok", "exit 3 seen as", rc)
