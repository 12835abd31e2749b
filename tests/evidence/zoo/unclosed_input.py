# SPDX-License-Identifier: Apache-2.0
import subprocess

subprocess.Popen(["cat"], stdin=subprocess.PIPE).wait()
