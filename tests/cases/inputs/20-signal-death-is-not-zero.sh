#!/bin/bash
# id: 20
# kind: unknown-outcome   form: shell   limits: timeout=2s
# expectation: status=signaled signal=9 (or exit 137), never 0/success; tail 'before'
echo before
kill -9 $$
