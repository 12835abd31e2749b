#!/bin/bash
# id: 03
# kind: pipe-held-open   form: shell   limits: timeout=6s
# expectation: status=completed exit=0 well before the limit (<=1.5s after leader exit), NOT timed_out; tail 'bg='; background child killed (survivors=0) or explicitly reported as leftover
sleep 42 &
echo "bg=$!"
exit 0
