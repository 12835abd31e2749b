# SPDX-License-Identifier: Apache-2.0
"""Reads the child's output to its end while the child fills the pipe for its errors."""

import subprocess
import sys

code = "import sys; sys.stderr.write('x' * 10**6)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
child.stdout.read()
