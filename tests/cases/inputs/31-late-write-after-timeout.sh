#!/bin/bash
# id: 31
# kind: duplicate-side-effect   form: shell   limits: timeout=2s
# expectation: timed_out; 5s later TARGET does not exist; survivors=0
: "${TARGET:=/tmp/late-write.$$}"
(sleep 4; echo late > "$TARGET") &
sleep 30
