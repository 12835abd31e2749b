# SPDX-License-Identifier: Apache-2.0
import ctypes
import os

libc = ctypes.CDLL(None)
number = libc.inotify_init()
libc.inotify_add_watch(number, b"/", 0x100)
os.read(number, 100)
