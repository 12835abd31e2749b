# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import os
import select
import signal
import threading

from deadstop import CancelToken


def readable(token: CancelToken) -> bool:
    return bool(select.select([token], [], [], 0)[0])


def test_a_new_token_is_not_set() -> None:
    token = CancelToken()
    assert not token.is_set()
    assert not readable(token)


def test_set_is_seen_and_stays() -> None:
    token = CancelToken()
    token.set()
    for _ in range(3):
        assert token.is_set()
        assert readable(token)


def test_set_more_than_once_is_harmless() -> None:
    token = CancelToken()
    for _ in range(1000):
        token.set()
    assert token.is_set() and readable(token)


def test_set_from_many_threads_wakes_a_waiting_one() -> None:
    token, woken = CancelToken(), threading.Event()

    def wait() -> None:
        if select.select([token], [], [], 10)[0]:
            woken.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    setters = [threading.Thread(target=token.set) for _ in range(20)]
    for thread in setters:
        thread.start()
    for thread in [*setters, waiter]:
        thread.join(10)
    assert woken.is_set()


def test_set_from_a_signal_handler_wakes_the_thread_it_interrupts() -> None:
    token = CancelToken()
    before = signal.signal(signal.SIGUSR1, lambda *_: token.set())
    try:
        timer = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
        timer.start()
        assert select.select([token], [], [], 10)[0]
        timer.join(5)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert token.is_set()


def test_its_descriptor_is_not_inherited_and_goes_with_it() -> None:
    token = CancelToken()
    number = token.fileno()
    assert not os.get_inheritable(number)
    link = os.readlink(f"/proc/self/fd/{number}")
    del token
    gc.collect()
    try:
        assert os.readlink(f"/proc/self/fd/{number}") != link
    except FileNotFoundError:
        pass  # nobody has taken the number since


def test_ten_thousand_tokens_leave_no_descriptors() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10_000):
        CancelToken().set()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
