# SPDX-License-Identifier: Apache-2.0
import ctypes
import threading
import time

threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).pthread_exit(None)
