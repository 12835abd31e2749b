#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A tool call that does not end: it ignores the polite signals, leaves children in sessions of their own that hold its
# output open, asks a question nobody answers, and waits. Run it with
# `deadstop run --timeout 3 -- bash examples/hostile.sh`.
# All of it gives up by itself after a minute, so that a run by hand is no trap.

trap '' HUP INT
trap 'echo "deploy: SIGTERM? not now."' TERM
for step in 1 2 3; do
    echo "deploy: step $step of 4 done"
    sleep 0.2
done

# Two helpers leave the process group and the session, one of them orphaned by a double fork. Both keep stdout open.
# shellcheck disable=SC2016 # the helper expands it
export HELPER='trap "" TERM HUP INT; echo "deploy: helper $1 started in a session of its own"; sleep 60'
setsid bash -c "$HELPER" helper 1 &
(setsid bash -c "$HELPER" helper 2 &)
sleep 0.3

# The question goes to a terminal that the tool opens for itself, so a closed standard input does not answer it.
export QUESTION='read -r -p "deploy: step 4 drops the old database. Proceed? [Y/n] " answer'
trap '' TERM
"${PYTHON:-python3}" -c '
import os, pty, signal
signal.alarm(60)
pty.spawn(["bash", "-c", os.environ["QUESTION"]])
' &
trap 'echo "deploy: SIGTERM? not now."' TERM
while kill -0 "$!" 2>/dev/null; do wait "$!"; done
echo "deploy: no answer, giving up"
