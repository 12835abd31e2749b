#!/bin/bash
# id: 21
# kind: fork-bomb   form: shell   limits: timeout=2s
# expectation: timed_out <=5s; survivors=0 (240+ procs); or pids limit error in tail; executor can start the next call at once
for i in $(seq 1 120); do (sleep 50 & sleep 50) & done
wait
