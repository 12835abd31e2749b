#!/bin/bash
# id: 04
# kind: orphan/daemon   form: shell   limits: timeout=2s
# expectation: timed_out <=3s; survivors=0 even outside the process group/session (cgroup/subreaper/tree sweep)
setsid sh -c "sleep 43; echo late" </dev/null >/dev/null 2>&1 &
sleep 43
