#!/bin/bash
# id: 35
# kind: hang-stdin   form: shell   limits: timeout=2s
# expectation: completed with exit 2 (syntax error in tail) <1s; session still usable; never waits for the limit
echo "never closed
