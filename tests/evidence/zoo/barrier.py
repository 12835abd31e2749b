# SPDX-License-Identifier: Apache-2.0
import threading

barrier = threading.Barrier(4)
for _ in range(2):
    threading.Thread(target=barrier.wait).start()
barrier.wait()
