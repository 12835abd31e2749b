#!/bin/bash
# id: 28
# kind: retry-loop   form: shell   limits: timeout=2s
# expectation: timed_out <=3s ALSO when started as background; tail ends with the last 'try N' (N>=10); same-call-repeated counter available; survivors=0
n=0
until false; do n=$((n+1)); echo "try $n"; sleep 0.1; done
