#!/bin/bash
# id: 32
# kind: PTY/TUI   form: shell   limits: timeout=2s
# expectation: completed; plain tail has no ESC bytes, collapses CR frames to '400%', ends 'DONE'; raw kept as evidence
printf '\033[?1049h'
for i in $(seq 1 400); do printf '\r\033[2K\033[32m%3d%%\033[0m' $i; done
printf '\033[?1049l\nDONE\n'
