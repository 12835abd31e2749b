# id: 26
# kind: large-argument   form: script   limits: timeout=2s
# expectation: either runs (script via file/stdin) with output 200001, or status=spawn_failed errno=E2BIG before start, attempts=0, never unknown outcome
import sys
n = 200_000                     # > MAX_ARG_STRLEN (131072)
cmd = 'echo ' + 'a' * n + ' | wc -c'
sys.stdout.write(cmd)           # feed this text to the shell tool
