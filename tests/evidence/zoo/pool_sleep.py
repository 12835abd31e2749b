# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import time

with concurrent.futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(time.sleep, [1000] * 4))
