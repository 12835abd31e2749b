# SPDX-License-Identifier: Apache-2.0
"""The smolagents executor: what stays from step to step, what is lost and said to be, what comes back."""

from __future__ import annotations

import select
import signal
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("smolagents", reason="smolagents is not installed")
pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")

from smolagents import FinalAnswerTool
from smolagents import local_python_executor as upstream

import deadstop
from deadstop.adapters.smolagents import (
    DeadstopPythonExecutor,
    FunctionOfTheModel,
    InterpreterLost,
    InterpreterTimeout,
    StayedInWorker,
    evaluate_python_code,
)

HANGS = "print('so far')\nwhile True:\n    sum(range(10**9))"


@pytest.fixture
def executor() -> Iterator[DeadstopPythonExecutor]:
    made = DeadstopPythonExecutor(["os"], timeout_seconds=1, guard=False)
    made.send_tools({})
    yield made
    made.cleanup()


def outcome(executor: DeadstopPythonExecutor, code: str) -> Exception:
    with pytest.raises(Exception) as caught:
        executor(code)
    return caught.value


# -- what stays --------------------------------------------------------------------------------------------------------


def test_variables_imports_functions_and_classes_stay_from_step_to_step(executor: DeadstopPythonExecutor) -> None:
    executor("import math\nnumbers = [1, 2]\ndef double(x):\n    return 2 * x\nclass Box:\n    held = 5")
    executor("numbers.append(3)")
    assert executor("(math.floor(2.5), numbers, double(4), Box.held)").output == (2, [1, 2, 3], 8, 5)


def test_each_executor_has_a_worker_of_its_own(executor: DeadstopPythonExecutor) -> None:
    other = DeadstopPythonExecutor(["os"])
    executor("x = 1")
    with pytest.raises(upstream.InterpreterError, match="`x` is not defined"):
        other("x")
    other.cleanup()


def test_logs_are_those_of_the_step(executor: DeadstopPythonExecutor) -> None:
    assert executor("print('one', 1)").logs == "one 1\n"
    result = executor("print('two')\n40 + 2")
    assert (result.output, result.logs, result.is_final_answer) == (42, "two\n", False)
    assert str(executor.state["_print_outputs"]) == "two\n"
    assert isinstance(outcome(executor, "print('three')\n1 / 0"), upstream.InterpreterError)
    assert str(executor.state["_print_outputs"]) == "three\n"


def test_an_error_names_the_line_and_costs_nothing(executor: DeadstopPythonExecutor) -> None:
    executor("x = 1")
    assert "failed at line 'y = x / 0' due to: ZeroDivisionError" in str(outcome(executor, "x = 2\ny = x / 0"))
    assert "Code parsing failed on line 1" in str(outcome(executor, "x = ;"))
    assert executor("x").output == 2


@pytest.mark.parametrize("raised", ["SystemExit(3)", "KeyboardInterrupt()"])
def test_what_would_end_the_host_program_is_an_error_like_any_other(
    executor: DeadstopPythonExecutor, raised: str
) -> None:
    executor("x = 1")
    assert isinstance(outcome(executor, f"raise {raised}"), upstream.InterpreterError)
    assert executor("x").output == 1


def test_a_final_answer_is_one_even_inside_a_broad_except(executor: DeadstopPythonExecutor) -> None:
    executor.send_tools({"final_answer": FinalAnswerTool()})
    result = executor("try:\n    final_answer({'a': [1]})\nexcept Exception:\n    pass")
    assert (result.output, result.is_final_answer) == ({"a": [1]}, True)


def test_the_interpreters_own_limits_are_those_of_the_caller(
    executor: DeadstopPythonExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "MAX_WHILE_ITERATIONS", 10)
    assert "Maximum number of 10 iterations" in str(outcome(executor, "while True:\n    pass"))


# -- tools and variables -----------------------------------------------------------------------------------------------


def test_tools_and_functions_are_sent_by_value(executor: DeadstopPythonExecutor) -> None:
    word = "hello"
    made = DeadstopPythonExecutor([], additional_functions={"twice": lambda text: text * 2})
    made.send_tools({"greet": lambda name: f"{word} {name}"})
    assert made("twice(greet('you'))").output == "hello youhello you"
    made.cleanup()


def test_a_tool_that_cannot_be_sent_is_named_when_sent_and_when_called(executor: DeadstopPythonExecutor) -> None:
    lock = threading.Lock()

    def locked() -> bool:
        return lock.locked()

    with pytest.warns(RuntimeWarning, match="'locked' cannot be used in the worker"):
        executor.send_tools({"locked": locked, "fine": len})
    assert executor("fine('abc')").output == 3
    assert "'locked' cannot be used here: the code runs in a process of its own" in str(outcome(executor, "locked()"))


def test_variables_can_be_sent_between_steps_and_add_up(executor: DeadstopPythonExecutor) -> None:
    executor.send_variables(variables={"a": 1})
    executor("b = a + 1")
    executor.send_variables({"c": [3]})
    executor.state["d"] = 4
    assert executor("(a, b, c, d)").output == (1, 2, [3], 4)


def test_the_state_can_be_read_from_here(executor: DeadstopPythonExecutor) -> None:
    executor.send_variables({"sent": 1})
    executor("import math\nfound = {'x': math.pi > 3}\ndef double(x):\n    return 2 * x\ndel sent")
    assert executor.state["found"] == {"x": True}
    assert set(executor.state) == {"__name__", "_print_outputs", "sent", "math", "found", "double"}
    for missing in ("sent", "never"):
        with pytest.raises(KeyError):
            executor.state[missing]
    assert executor("found['x']").output is True  # looking cost nothing


# -- what is lost ------------------------------------------------------------------------------------------------------


def test_a_step_that_hangs_ends_in_time_and_says_what_is_gone(executor: DeadstopPythonExecutor) -> None:
    executor.send_variables({"seed": 7})
    executor("import math\nmine = seed")
    begun = time.monotonic()
    error = outcome(executor, HANGS)
    assert time.monotonic() - begun < 1.5
    assert isinstance(error, InterpreterTimeout)
    text = str(error)
    assert text.startswith("Code execution exceeded the maximum execution time of 1 seconds")
    assert "earlier steps are gone: math, mine." in text and "It printed last: so far" in text
    assert str(executor.state["_print_outputs"]) == "so far\n"
    assert error.result.receipt is not None and error.result.receipt.survivors == 0
    after = executor("seed")
    assert after.output == 7 and "steps are gone: math, mine." in after.logs
    assert "`math` is not defined" in str(outcome(executor, "math.pi"))
    assert executor("seed").logs == ""  # said once


def test_memory_ends_the_step_and_says_so() -> None:
    executor = DeadstopPythonExecutor([], timeout_seconds=20, guard=False)
    executor("x = 1")
    error = outcome(executor, "y = 'a' * 10**10")
    if isinstance(error, InterpreterLost):
        assert "needed more than the 512 MiB" in str(error) and "gone: x." in str(error)
    else:  # kept by a limit on the address space, which the code meets as an exception
        assert "MemoryError" in str(error)
    assert executor("40 + 2").output == 42
    executor.cleanup()


def test_code_that_ends_its_process_is_told_so(executor: DeadstopPythonExecutor) -> None:
    executor("import os\nx = 1")
    error = outcome(executor, "os._exit(3)")
    assert isinstance(error, InterpreterLost) and "gone: os, x." in str(error)
    assert executor("40 + 2").output == 42


def test_an_interpreter_that_vanished_between_steps_is_missed_before_anything_runs(
    executor: DeadstopPythonExecutor,
) -> None:
    executor("x = 1")
    assert executor._kept is not None and executor._kept._worker is not None
    gone = executor._kept._worker.exit_fd
    signal.pidfd_send_signal(gone, signal.SIGKILL)
    assert select.select([gone], [], [], 5)[0]
    error = outcome(executor, "y = 2")
    assert isinstance(error, InterpreterLost) and "gone: x." in str(error)
    assert executor("40 + 2").output == 42
    assert "y" not in executor.state


def test_a_step_without_a_limit_is_possible_and_others_are_refused() -> None:
    unlimited = DeadstopPythonExecutor([], timeout_seconds=None)
    assert unlimited("1 + 1").output == 2
    unlimited.cleanup()
    for wrong in (0, -1, float("nan"), float("inf"), True, "5"):
        with pytest.raises(deadstop.UsageError):
            DeadstopPythonExecutor([], timeout_seconds=wrong)  # type: ignore[arg-type]


def test_cleanup_ends_the_worker_and_a_later_step_begins_anew(executor: DeadstopPythonExecutor) -> None:
    executor("x = 1")
    executor.cleanup()
    executor.cleanup()
    assert executor("40 + 2").output == 42
    assert "x" not in executor.state


def test_the_outer_deadline_counts_too(executor: DeadstopPythonExecutor) -> None:
    executor("x = 1")
    begun = time.monotonic()
    with deadstop.deadline(0.4):
        error = outcome(executor, HANGS)
    assert isinstance(error, InterpreterTimeout) and time.monotonic() - begun < 0.9


def test_steps_from_two_threads_run_one_after_another(executor: DeadstopPythonExecutor) -> None:
    executor("counted = []")
    threads = [threading.Thread(target=executor, args=(f"counted.append({number})",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(executor("counted").output) == list(range(8))


# -- what comes back ---------------------------------------------------------------------------------------------------


def test_nothing_that_the_model_wrote_runs_here(executor: DeadstopPythonExecutor) -> None:
    executor(
        "class Trap:\n    def __init__(self, n):\n        self.n = n\n    def __str__(self):\n        return 'trap'"
    )
    result = executor("Trap('a')")
    assert isinstance(result.output, StayedInWorker) and str(result.output) == "trap"
    hanging = "class Worse:\n    def __str__(self):\n        return sum(range(10**9))\nWorse()"
    assert isinstance(outcome(executor, hanging), InterpreterTimeout)


def test_a_function_comes_back_as_its_source(executor: DeadstopPythonExecutor) -> None:
    function = executor("def double(x):\n    return 2 * x\ndouble").output
    assert isinstance(function, FunctionOfTheModel)
    assert (function.__name__, function.__source__) == ("double", "def double(x):\n    return 2 * x")
    with pytest.raises(TypeError, match="written by a model"):
        function(1)


def test_what_cannot_be_sent_comes_back_as_its_text(executor: DeadstopPythonExecutor) -> None:
    output = executor("(number for number in [1])").output
    assert isinstance(output, StayedInWorker)
    assert str(output).startswith("<generator object") and "generator" in output.reason


def test_the_guard_answers_before_the_interpreter_is_lost() -> None:
    guarded = DeadstopPythonExecutor([], timeout_seconds=5)
    guarded("x = 1")
    error = outcome(guarded, "y = 10 ** 10 ** 8")
    assert "Nothing was run" in str(error) and "line 1" in str(error)
    assert guarded("x").output == 1
    guarded.cleanup()


def test_a_sandbox_confines_the_code_and_gives_plain_data(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch()
    confined = DeadstopPythonExecutor(["os"], timeout_seconds=1, isolation="sandbox", guard=False)
    confined.send_variables({"seed": 7, "path": str(outside)})
    confined.send_tools({})
    try:
        first = confined("import os\nmine = seed * 6\n(mine, os.access(path, os.F_OK), os.listdir('.'))")
    except deadstop.BoundaryUnavailable as problem:
        pytest.skip(f"no sandbox here: {problem}")
    assert first.output == (42, False, [])
    assert isinstance(confined("lambda x: x").output, StayedInWorker)
    assert "gone: os, mine." in str(outcome(confined, HANGS))
    assert confined("seed").output == 7
    confined.cleanup()


# -- evaluate_python_code ----------------------------------------------------------------------------------------------


def test_evaluate_puts_the_state_back_into_the_same_dict() -> None:
    state: dict[str, object] = {"x": [1], "gone": 1}
    value, final = evaluate_python_code("x.append(2)\ny = x\ndel gone\nclass A:\n    n = 1\na = A()\ny", state=state)
    assert (value, final) == ([1, 2], False)
    assert state["x"] == [1, 2] and state["y"] is state["x"] and "gone" not in state
    assert isinstance(state["a"], state["A"])  # type: ignore[arg-type]
    assert isinstance(state["_print_outputs"], upstream.PrintContainer)


def test_evaluate_gives_back_generators_that_had_not_begun_and_says_what_became_of_others() -> None:
    state: dict[str, types.GeneratorType] = {}
    evaluate_python_code(
        "fresh = (n * 2 for n in [1, 2])\nbegun = (n for n in [1, 2])\nnext(begun)", {"next": next}, state=state
    )
    assert isinstance(state["begun"], types.GeneratorType)
    with pytest.raises(TypeError, match="had begun in another process"):
        next(state["begun"])
    assert list(state["fresh"]) == [2, 4]


def test_evaluate_leaves_what_cannot_be_sent_where_it_is() -> None:
    lock = threading.Lock()
    state: dict[str, object] = {"lock": lock, "x": 1}
    assert evaluate_python_code("x + 1", state=state) == (2, False)
    assert state["lock"] is lock and state["x"] == 1
    with pytest.raises(upstream.InterpreterError, match="'lock' cannot be used here"):
        evaluate_python_code("lock.locked()", state=state)


def test_evaluate_ends_in_time_and_leaves_the_state_as_it_was() -> None:
    state: dict[str, object] = {"x": 1}
    begun = time.monotonic()
    with pytest.raises(InterpreterTimeout, match=r"maximum execution time of 0\.5 seconds"):
        evaluate_python_code(f"x = 2\n{HANGS}", upstream.BASE_PYTHON_TOOLS, state=state, timeout_seconds=0.5)
    assert time.monotonic() - begun < 1.0
    assert state["x"] == 1 and str(state["_print_outputs"]) == "so far\n"
