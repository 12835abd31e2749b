#!/bin/bash
# id: 30
# kind: timeout-too-early (progress)   form: shell   limits: idle=1s hard=3s
# expectation: hard total limit fires <=limit+1s although output never pauses; tail '....'; survivors=0
while :; do printf .; sleep 0.3; done
