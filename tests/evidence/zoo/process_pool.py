# SPDX-License-Identifier: Apache-2.0
import multiprocessing
import time

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(time.sleep, [1000, 1000])
