#!/bin/bash
# id: 36
# kind: hang-stdin   form: shell   limits: timeout=2s
# expectation: timed_out <=3s, survivors=0, session marked dead and replaced; next command works
exec sleep 51
