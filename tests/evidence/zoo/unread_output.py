# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

subprocess.Popen([sys.executable, "-c", "print('x'*10**6)"], stdout=subprocess.PIPE).wait()
