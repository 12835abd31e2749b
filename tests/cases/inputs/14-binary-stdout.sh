#!/bin/bash
# id: 14
# kind: encoding/binary-output   form: shell   limits: timeout=2s
# expectation: completed exit=0; raw bytes kept in evidence; text view uses U+FFFD; tail ends 'END'; no exception
printf 'ok\n\377\376\000\200\n'
head -c 64 /bin/ls
printf '\nEND\n'
