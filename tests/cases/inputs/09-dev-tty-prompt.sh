#!/bin/bash
# id: 09
# kind: PTY/TUI   form: shell   limits: timeout=2s
# expectation: child has no controlling terminal: exit 8 in <1s; the executor's own terminal is never read
exec 3</dev/tty || { echo "no tty"; exit 8; }
read -r pw <&3; echo "got"
