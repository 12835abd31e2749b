#!/bin/bash
# id: 16
# kind: truncated-output   form: shell   limits: timeout=2s
# expectation: timed_out; stdout tail 'step-1-ok' and stderr tail 'step-2-warn' both present; survivors=0
echo step-1-ok
echo step-2-warn >&2
sleep 48
