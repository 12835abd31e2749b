# SPDX-License-Identifier: Apache-2.0
import threading
import time

first, second = threading.Lock(), threading.Lock()


def take(one, other):
    with one:
        time.sleep(0.1)
        with other:
            pass


threads = [threading.Thread(target=take, args=pair) for pair in ((first, second), (second, first))]
for thread in threads:
    thread.start()
threads[0].join()
