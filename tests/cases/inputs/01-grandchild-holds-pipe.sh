#!/bin/bash
# id: 01
# kind: pipe-held-open   form: shell   limits: timeout=2s
# expectation: status=timed_out at 2s (return <=3s); tail contains 'started'; survivors=0
sleep 41 & echo started
wait
