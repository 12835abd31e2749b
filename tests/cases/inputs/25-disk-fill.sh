#!/bin/bash
# id: 25
# kind: disk   form: shell   limits: disk=50MB timeout=5s
# expectation: with fsize/disk limit 50MB: status=disk_limit or SIGXFSZ reported; file <=limit; temp dir removed after call; a full spool is an error, never empty success
f=$(mktemp); trap "rm -f $f" EXIT
yes filler-filler-filler | head -c 400000000 > $f
ls -l $f; sleep 40
