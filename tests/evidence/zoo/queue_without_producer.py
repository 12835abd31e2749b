# SPDX-License-Identifier: Apache-2.0
import multiprocessing

multiprocessing.get_context("fork").Queue().get()
