#!/bin/bash
# id: 10
# kind: PTY/TUI   form: shell   limits: timeout=2s
# expectation: either defaults (GIT_EDITOR=true, GIT_TERMINAL_PROMPT=0) end it <2s, or timed_out <=3s with survivors=0 (git + editor)
d=$(mktemp -d); cd $d; git init -q .; echo x>a; git add a
git config user.email a@example.invalid; git config user.name a
git config core.editor "sleep 46; true"
git commit; echo rc=$?
