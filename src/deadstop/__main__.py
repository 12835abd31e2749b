# SPDX-License-Identifier: Apache-2.0
import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `run` takes it over, an interrupt just ends this process

import sys  # noqa: E402

from .cli import main  # noqa: E402

sys.exit(main())
