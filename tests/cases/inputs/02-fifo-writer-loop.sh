#!/bin/bash
# id: 02
# kind: pipe-held-open   form: shell   limits: timeout=2s
# expectation: timed_out <=3s; tail ends with 'tick'; survivors=0 (loop subshell, cat, sleep)
d=$(mktemp -d); mkfifo $d/p
(while :; do echo tick; sleep 0.3; done) > $d/p &
cat $d/p
