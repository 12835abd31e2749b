#!/bin/bash
# id: 08
# kind: hang-stdin   form: shell   limits: timeout=2s
# expectation: stdin is /dev/null by default: exit 9 in <1s, tail ends 'eof'; if stdin kept open: timed_out with prompt text in tail and a waiting-for-input hint
printf "Continue? [y/N] "
read -r a || { echo "eof"; exit 9; }
echo "got:$a"
