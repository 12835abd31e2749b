# SPDX-License-Identifier: Apache-2.0
"""Maps more than it may keep; only ever started inside a control group with a memory limit."""

import mmap
import os
import random
import sys

SIZE = 300 << 20
number = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(number, SIZE)
view = mmap.mmap(number, SIZE, prot=mmap.PROT_READ)
total = 0
while True:
    total += view[random.randrange(SIZE)]
