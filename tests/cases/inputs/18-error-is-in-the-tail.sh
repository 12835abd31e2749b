#!/bin/bash
# id: 18
# kind: truncated-output   form: shell   limits: timeout=2s
# expectation: completed exit=3; tail ends 'last-line'; stderr tail has '4711'; truncated=true, dropped byte count given
seq 1 200000
echo 'FATAL: real cause 4711' >&2
echo last-line; exit 3
