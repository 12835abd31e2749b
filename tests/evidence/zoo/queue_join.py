# SPDX-License-Identifier: Apache-2.0
import queue
import threading

work = queue.Queue()
worker = threading.Thread(target=work.get)
worker.start()
worker.join()
