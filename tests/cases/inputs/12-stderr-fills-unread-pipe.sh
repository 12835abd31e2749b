#!/bin/bash
# id: 12
# kind: pipe-held-open   form: shell   limits: timeout=2s
# expectation: completed exit=0 <2s; stdout tail 'answered'; stderr tail kept and counted (300000 bytes)
head -c 300000 /dev/zero | tr '\0' e >&2
echo answered
