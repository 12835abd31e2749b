#!/bin/bash
# id: 13
# kind: huge-single-line   form: shell   limits: timeout=2s
# expectation: completed exit=0; bytes_total=3000005; tail ends 'END'; bounded memory; no reader crash
head -c 3000000 /dev/zero | tr '\0' a
echo; echo END
