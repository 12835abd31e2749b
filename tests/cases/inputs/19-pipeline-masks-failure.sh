#!/bin/bash
# id: 19
# kind: unknown-outcome   form: shell   limits: timeout=2s
# expectation: record only what is known: exit=0 of the LAST stage (shell status), never a 'succeeded' claim about the whole; optional PIPESTATUS evidence [3,0]
sh -c 'echo 2 failed; exit 3' | tail -1
