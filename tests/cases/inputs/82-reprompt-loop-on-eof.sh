#!/bin/bash
# id: 82
# kind: hang-stdin   form: shell   limits: timeout=2s
# expectation: timed_out/output_limit <=3s with stdin=/dev/null; output bounded (no GBs), tail shows the prompt, hint waiting-for-input; survivors=0
a=
while [ -z "$a" ]; do printf "* Project name: "; read -r a; echo "* Please enter some text."; done
