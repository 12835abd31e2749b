#!/bin/bash
# id: 05
# kind: signal-trap   form: shell   limits: timeout=2s
# expectation: cancel/timeout: TERM, grace, KILL; ended <= limit+grace+1s; record shows escalated=KILL; survivors=0
trap '' TERM INT HUP
while :; do sleep 0.2; done
