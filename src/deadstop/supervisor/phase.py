# SPDX-License-Identifier: Apache-2.0
"""How far the end of a call has come."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    RUNNING = "running"
    EVIDENCE = "evidence"  #: decided; what it was doing is being read
    GRACE = "grace"  #: SIGTERM is out
    KILLING = "killing"  #: SIGKILL is out; waiting for the proof
    FILES = "files"  #: over; the files named as evidence are being read
