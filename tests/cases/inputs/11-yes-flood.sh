#!/bin/bash
# id: 11
# kind: output-flood   form: shell   limits: timeout=2s
# expectation: timed_out or output_limit <=3s; supervisor RSS growth <50MB; no unbounded spool; tail is the LAST bytes, bytes_total counted, truncated=true; survivors=0
yes 0123456789012345678901234567890123456789
