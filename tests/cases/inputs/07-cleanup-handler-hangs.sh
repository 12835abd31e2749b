#!/bin/bash
# id: 07
# kind: deadlock-in-cleanup   form: shell   limits: timeout=2s
# expectation: grace is bounded: KILL at limit+grace; tail shows 'cleaning'; survivors=0
trap 'echo cleaning; sleep 45' TERM
sleep 45 & wait $!
sleep 45
