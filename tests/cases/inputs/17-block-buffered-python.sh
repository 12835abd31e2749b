#!/bin/bash
# id: 17
# kind: truncated-output   form: shell   limits: timeout=2s
# expectation: timed_out; tail contains 'phase A done' (PYTHONUNBUFFERED default) or evidence says output may be buffered by child; TERM before KILL does not help here
python3 -c 'import time; print("phase A done"); time.sleep(49)'
