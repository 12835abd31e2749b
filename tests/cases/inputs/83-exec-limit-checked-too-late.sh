#!/bin/bash
# id: 83
# kind: hang-cpu   form: shell   limits: timeout=2s
# expectation: timed_out at 2s +-0.5 under full CPU load; tail 'begin'; cpu_time in evidence ~2s; survivors=0
echo begin
while :; do :; done
