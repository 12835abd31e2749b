# SPDX-License-Identifier: Apache-2.0
"""Ending a tree without a namespace. The killing itself runs in a script of its own: it has no other children."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import deadstop
from deadstop.boundary.reaper import children_of, descendants, parent_of, parents, signal_tree

SOURCE = Path(deadstop.__file__).parent.parent
PRELUDE = """
import json, os, signal, subprocess, sys, time
from deadstop.boundary import reaper
from deadstop.boundary.syscalls import become_subreaper
def until(check, within=5):
    end = time.monotonic() + within
    while not check():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)
def state(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(") ")[2][0]
    except OSError:
        return "gone"
"""


def script(text: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + dedent(text)], capture_output=True, text=True, timeout=40,
        env={**os.environ, "PYTHONPATH": str(SOURCE)}, start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_parents_and_children_agree_with_the_kernel() -> None:
    with subprocess.Popen(["sleep", "30"]) as child:
        try:
            assert child.pid in children_of(os.getpid())
            assert parent_of(child.pid) == os.getpid()
            assert parents()[child.pid] == os.getpid()
            assert child.pid in descendants(os.getpid())
        finally:
            child.kill()
    assert parent_of(child.pid) == 0
    assert children_of(child.pid) == []


def test_a_name_with_brackets_and_spaces_does_not_hide_the_parent(tmp_path: Path) -> None:
    program = tmp_path / ") R 1 (x"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "30"]) as child:
        try:
            assert parent_of(child.pid) == os.getpid()
        finally:
            child.kill()


def test_descendants_lists_parents_before_children_up_to_a_limit() -> None:
    with subprocess.Popen(
        ["bash", "-c", "(sleep 30 & sleep 30 & wait) & echo up; wait"], stdout=subprocess.PIPE
    ) as top:
        assert top.stdout and top.stdout.readline()
        try:
            deadline = 200
            while len(found := descendants(top.pid)) < 3 and deadline:
                deadline -= 1
                os.sched_yield()
                subprocess.run(["sleep", "0.01"], check=True)
            assert len(found) == 3
            assert [parent_of(pid) for pid in found] == [top.pid, found[0], found[0]]
            assert len(descendants(top.pid, limit=1)) == 1
        finally:
            signal_tree(top.pid, signal.SIGKILL)
            top.kill()


def test_signal_tree_reaches_every_descendant_and_nobody_else() -> None:
    got = script("""
        become_subreaper()
        stranger = subprocess.Popen(["sleep", "30"])
        top = subprocess.Popen(["bash", "-c", "setsid sleep 30 & (sleep 30 & wait) & wait"])
        until(lambda: len(reaper.descendants(top.pid)) == 3)
        below = reaper.descendants(top.pid)
        sent = reaper.signal_tree(top.pid, signal.SIGSTOP)
        until(lambda: all(state(pid) == "T" for pid in below))
        print(json.dumps({"sent": sent, "stranger": state(stranger.pid), "top": state(top.pid)}))
        reaper.drain(seconds=5)
    """)
    assert got["sent"] == 3
    assert got["stranger"] in "SR" and got["top"] in "SR"


def test_signal_tree_leaves_alone_a_pid_that_is_no_descendant_any_more() -> None:
    """The list was read, then a number passed to a stranger: the parent is checked behind the pidfd."""
    got = script("""
        become_subreaper()
        stranger = subprocess.Popen(["sleep", "30"])
        top = subprocess.Popen(["sleep", "30"])
        real = reaper.descendants
        reaper.descendants = lambda root, **rest: [stranger.pid]  # what a stale list would say
        sent = reaper.signal_tree(top.pid, signal.SIGKILL)
        reaper.descendants = real
        print(json.dumps({"sent": sent, "stranger": state(stranger.pid)}))
        reaper.drain(seconds=5)
    """)
    assert got["sent"] == 0 and got["stranger"] in "SR"


def test_drain_ends_daemons_and_stubborn_ones_until_none_is_left() -> None:
    got = script("""
        become_subreaper()
        hostile = "trap '' TERM HUP INT; setsid bash -c 'trap \\"\\" TERM; sleep 30' & (setsid sleep 30 &) ; sleep 30"
        tops = [subprocess.Popen(["bash", "-c", hostile]) for _ in range(5)]
        until(lambda: len(reaper.descendants(os.getpid())) >= 15)
        before = reaper.descendants(os.getpid())
        done = reaper.drain(seconds=10)
        print(json.dumps({"done": done, "left": [pid for pid in before if state(pid) not in ("gone",)],
                          "children": reaper.children_of(os.getpid())}))
    """)
    assert got == {"done": True, "left": [], "children": []}


def test_drain_beats_a_fork_chain() -> None:
    """Each process forks its successor and exits: no list of it is ever true."""
    got = script("""
        become_subreaper()
        chain = "import os\\nwhile True:\\n    if os.fork(): os._exit(0)"
        child = os.fork()
        if child == 0:
            import resource
            end = time.monotonic() + 20  # should the test die, the chain does too
            while time.monotonic() < end:
                if os.fork():
                    os._exit(0)
            os._exit(0)
        until(lambda: state(child) == "Z")
        began = time.monotonic()
        done = reaper.drain(seconds=10)
        print(json.dumps({"done": done, "took": time.monotonic() - began, "children": reaper.children_of(os.getpid())}))
    """)
    assert got["done"] is True and got["children"] == []
    assert got["took"] < 8


def test_signal_tree_spares_one_and_leaves_out_a_whole_tree() -> None:
    """`spare` keeps the signal from a process but not from what is below it; `without` from both."""
    got = script("""
        become_subreaper()
        tops = [subprocess.Popen(["bash", "-c", "sleep 30 & wait"]) for _ in range(3)]
        until(lambda: all(len(reaper.children_of(top.pid)) == 1 for top in tops))
        plain, spared, without = [(top.pid, reaper.children_of(top.pid)[0]) for top in tops]
        sent = reaper.signal_tree(os.getpid(), signal.SIGSTOP, spare=frozenset([spared[0]]),
                                  without=frozenset([without[0]]))
        until(lambda: all(state(pid) == "T" for pid in (*plain, spared[1])))
        print(json.dumps({"sent": sent, "running": [state(pid) for pid in (spared[0], *without)]}))
        reaper.drain(seconds=5)
    """)
    assert got["sent"] == 3
    assert set(got["running"]) <= {"S", "R"}


def test_sweep_kills_and_collects_strangers_and_spares_known_children() -> None:
    got = script("""
        become_subreaper()
        kept = subprocess.Popen(["sleep", "30"])
        others = [subprocess.Popen(["bash", "-c", "trap '' TERM; setsid sleep 30 & wait"]) for _ in range(5)]
        until(lambda: len(reaper.descendants(os.getpid())) >= 11)
        before = set(reaper.descendants(os.getpid())) - {kept.pid}
        until(lambda: reaper.sweep(frozenset([kept.pid])))
        print(json.dumps({"kept": state(kept.pid), "before": len(before),
                          "left": [pid for pid in before if state(pid) != "gone"],
                          "children": reaper.children_of(os.getpid()) == [kept.pid]}))
        kept.kill(); kept.wait(5)
    """)
    assert got["kept"] in "SR"
    assert got["before"] >= 10 and got["left"] == [] and got["children"] is True


def test_sweep_does_not_collect_a_known_child_that_is_dead_already() -> None:
    """Whoever knows it waits for it by its own descriptor."""
    got = script("""
        become_subreaper()
        kept = os.posix_spawn("/bin/true", ["true"], os.environ)
        until(lambda: state(kept) == "Z")
        other = subprocess.Popen(["sleep", "30"])
        until(lambda: reaper.sweep(frozenset([kept])))
        other_state, kept_state = state(other.pid), state(kept)
        print(json.dumps({"kept": kept_state, "other": other_state, "status": os.waitpid(kept, 0)[1]}))
    """)
    assert got == {"kept": "Z", "other": "gone", "status": 0}


def test_sweep_spares_everything_below_a_known_child() -> None:
    """The supervisor knows the reapers of other calls: their payloads are not its to kill."""
    got = script("""
        become_subreaper()
        kept = subprocess.Popen(["bash", "-c", "(sleep 30 & wait) & wait"])
        other = subprocess.Popen(["sleep", "30"])
        until(lambda: len(reaper.descendants(kept.pid)) == 2)
        below = reaper.descendants(kept.pid)
        until(lambda: reaper.sweep(frozenset([kept.pid])))
        print(json.dumps({"other": state(other.pid), "spared": [state(pid) for pid in (kept.pid, *below)]}))
        reaper.drain(seconds=5)
    """)
    assert got["other"] == "gone"
    assert len(got["spared"]) == 3 and set(got["spared"]) <= {"S", "R"}


def test_sweep_says_that_something_was_left_until_it_is_collected() -> None:
    got = script("""
        become_subreaper()
        stuck = subprocess.Popen(["sleep", "30"])
        real, reaper.signal_tree = reaper.signal_tree, lambda *args, **rest: 0  # nothing dies
        left = reaper.sweep(frozenset())
        reaper.signal_tree = real
        until(lambda: reaper.sweep(frozenset()))
        print(json.dumps([left, reaper.sweep(frozenset()), state(stuck.pid)]))
    """)
    assert got == [False, True, "gone"]


def test_drain_with_nothing_to_do() -> None:
    assert script("print(json.dumps(reaper.drain(seconds=1)))") is True
