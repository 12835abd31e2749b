#!/bin/bash
# id: 29
# kind: timeout-too-early (progress)   form: shell   limits: hard=8s idle-notice=2s
# expectation: completed exit=0 after ~4s; a 2s no-output watchdog is only a notice, not a kill, unless the caller set idle_timeout
echo start
sleep 4
echo finished
