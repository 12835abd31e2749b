# SPDX-License-Identifier: Apache-2.0
"""What comes back, and what may be called."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import math
import operator
import os
import sys
import textwrap
import types

import tools
from telling import at_once, main, own_processes, section, seen, timed, until

import deadstop
from deadstop import Call, call

BAD = os.path.join(os.environ["TMPDIR"], "bad")  # modules that do not like to be imported
os.makedirs(BAD, exist_ok=True)
sys.path.insert(0, BAD)
BOUNDARIES = [0, 1, *range(65_535, 65_538), *range(131_071, 131_074), 200_000, 300_001, 10_000_000]


class OfMain(Exception):
    def __init__(self, text, number):
        super().__init__(text, number)
        self.number = number


class Point:
    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return self.x == other.x


def raises_of_main():
    raise OfMain("from the main script", 7)


def make_point(x):
    return Point(x)


@section
def sizes():
    wrong = []
    for size in BOUNDARIES:
        data = os.urandom(size)
        results = {
            "both": call(tools.echo, data),
            "result": call(tools.make, size),
            "argument": call(len, data),
            "text": call(tools.echo, "\u00e4" * (size // 2)),
            "exception": call(tools.raises, ValueError(data.hex())),
        }
        good = {
            "both": results["both"].value == data,
            "result": results["result"].value == b"x" * size,
            "argument": results["argument"].value == size,
            "text": results["text"].value == "\u00e4" * (size // 2),
            "exception": str(results["exception"].exception) == data.hex(),
        }
        wrong += [(size, name) for name, right in good.items() if not right]
    return wrong


@section
def large_both_ways_at_once():
    data = [os.urandom(3_000_000 + number) for number in range(8)]
    got = at_once(*[lambda each=each: call(tools.echo, each).value for each in data])
    return [hashlib.sha256(each).hexdigest() for each in got] == [hashlib.sha256(each).hexdigest() for each in data]


@section
def kinds():
    point = call(make_point, 3)
    values = [None, True, 0, -1.5, float("inf"), "a\0b\ud800", b"", (1, [2, {3: {4}}]), 1 << 5000, ..., range(3), 1j]
    back = [call(tools.echo, value).value for value in values]
    return {
        "all": [type(one) is type(other) and one == other for one, other in zip(values, back, strict=True)],
        "of_main": type(point.value) is Point and point.value == Point(3),
        "argument_of_main": call(lambda point: point.x, Point(5)).value,
        "same": call(lambda pair: pair[0] is pair[1], (values, values)).value,
        "type": call(tools.echo, Point).value is Point,
    }


@section
def unpicklable():
    generator = (number for number in range(3))
    return {
        "result": seen(call(tools.unpicklable)),
        "nested": seen(call(lambda: {"deep": [sys._getframe()]})),
        "argument": seen(call(tools.echo, generator)),
        "function": seen(call(lambda: generator)),
        "exception": seen(call(tools.raises_refuses)),
        "not_loadable": seen(call(tools.raises_needs_two)),
        "after": call(tools.plus, 1).value,
    }


@section
def exceptions():
    caught = None
    tool = deadstop.tool(raises_of_main)
    try:
        tool()
    except OfMain as problem:
        caught = [problem.args, problem.number, problem.result.status, str(problem.__cause__)]
    unwrapped = {}
    for name, function in {"exit": lambda: sys.exit(3), "interrupt": tools.interrupts}.items():
        try:
            call(function).unwrap()
        except BaseException as problem:
            unwrapped[name] = type(problem).__name__
    chained = call(_chained)
    return {
        "caught": caught, "unwrapped": unwrapped, "exit": seen(call(tools.exits, 3)), "text": seen(call(tools.exits,
        "bye")),
        "interrupt": seen(call(tools.interrupts)), "own_timeout": seen(call(tools.raises,
        TimeoutError("the tool's own"))),
        "group": seen(call(tools.raises_group)),
        "subs": [type(each).__name__ for each in call(tools.raises_group).exception.exceptions],
        "chained": seen(chained), "stop": seen(call(tools.raises, StopIteration(3))),
        "generator_exit": seen(call(tools.raises, GeneratorExit())),
        "raises_its_own_class": seen(call(tools.raises, deadstop.ToolTimeoutError("not by us"))),
        "text_fails": seen(call(_text_fails)), "recursion": seen(call(tools.endless_recursion)),
        "after": call(tools.plus, 1).value,
    }  # fmt: skip


class TextFails(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def _text_fails():
    raise TextFails


def _chained():
    try:
        {}["key"]
    except KeyError as problem:
        raise ValueError("because of it") from problem


@section
def callables():
    shelf, out = tools.Shelf(10), {}
    made = {
        "partial": Call(functools.partial(tools.plus, 1), other=5), "bound": Call(shelf.room, used=3),
        "object": Call(shelf, 4), "builtin": Call(len, [1, 2, 3]), "builtin_module": Call(math.factorial, 10),
        "class": Call(tools.Shelf, 8), "static": Call(tools.Shelf.fixed), "class_method": Call(tools.Shelf.named),
        "class_builtin": Call(int, "ff", 16), "getter": Call(operator.itemgetter(1), "ab"),
        "method": Call("a,b".split, ","),
        "lambda": Call(lambda one: one + 1, 1), "class_of_main": Call(Point, 4),
        "partial_of_lambda": Call(functools.partial(lambda one, other: one - other, 5), 3),
        "cached": Call(_cached, 3), "wrapped": Call(_wrapped, 3), "keyword_names": Call(_takes_names, function=1,
        args=2, self=3),
        "bound_of_main": Call(Doubler(4).double), "unhashable": Call(Unhashable()), "tool_of_main": Call(of_main_tool,
        3), "tool_method": Call(Desk(10).times, 3),
    }  # fmt: skip
    for name, each in made.items():
        result = call(each)
        out[name] = result.value if result.ok else seen(result)
    out["class"] = getattr(out["class"], "size", out["class"])
    out["class_of_main"] = getattr(out["class_of_main"], "x", out["class_of_main"])
    return out


@section
def decorated_tool_of_a_module():
    return seen(call(tools.decorated, 21))


@functools.lru_cache
def _cached(one):
    return one + 1


def _decorate(function):
    @functools.wraps(function)
    def inner(*args):
        return ("wrapped", function(*args))

    return inner


@_decorate
def _wrapped(one):
    return one


def _takes_names(function, args, self):
    return [function, args, self]


class Doubler:
    def __init__(self, number):
        self.number = number

    def double(self):
        return self.number * 2


@deadstop.tool
def of_main_tool(number):
    return number * number


class Desk:
    def __init__(self, number):
        self.number = number

    @deadstop.tool(timeout=5)
    def times(self, factor):
        return self.number * factor


class Unhashable:
    __hash__ = None

    def __call__(self):
        return "unhashable"


def _factorial(number):
    return 1 if number < 2 else number * _factorial(number - 1)


def _even(number):
    return True if number == 0 else _odd(number - 1)


def _odd(number):
    return False if number == 0 else _even(number - 1)


LEVEL = 1


def _reads_global():
    return LEVEL


def _with_default(one, seen=[]):  # noqa: B006
    seen.append(one)
    return list(seen)


@section
def closures():
    global LEVEL
    numbers = [1]
    total = lambda: sum(numbers)  # noqa: E731
    first = call(total).value
    numbers.append(10)
    second = call(total).value
    numbers[:] = [5]
    third = call(total).value
    before = call(_reads_global).value
    LEVEL = 2
    after = call(_reads_global).value
    count = 0

    def counts():
        nonlocal count
        count += 1
        return count

    counted = [call(counts).value for _ in range(3)]
    defaults = [call(_with_default, 1).value, call(_with_default, 2).value]
    _with_default.__defaults__[0].append("caller's")
    defaults.append(call(_with_default, 3).value)
    original = _reads_global.__code__
    _reads_global.__code__ = (lambda: "new code").__code__
    recoded = call(_reads_global).value
    _reads_global.__code__ = original
    _with_default.__defaults__ = ((),)
    replaced = seen(call(_with_default, 1))["error"]["type"]

    def inner(number):
        return 1 if number < 2 else number * inner(number - 1)

    return {
        "list": [first, second, third],
        "global": [before, after],
        "nonlocal": [counted, count],
        "defaults": defaults,
        "recoded": recoded,
        "replaced": replaced,
        "recursion": [call(_factorial, 10).value, call(inner, 10).value],
        "mutual": call(_even, 7).value,
        "module_recursion": call(tools.recursive, 10).value,
    }


@section
def same_names():
    def one():
        return "one"

    first = one

    def one():
        return "other"

    made = [(lambda number=number: number) for number in range(20)]
    module = types.ModuleType("made_by_hand")
    exec("def one(): return 'of a module made by hand'", module.__dict__)
    return {
        "two": [call(first).value, call(one).value, call(first).value],
        "many": [call(each).value for each in made] == list(range(20)),
        "by_hand": call(module.one).value,
    }


def _write(folder, name, text):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{name}.py")
    with open(path, "w") as file:
        file.write(textwrap.dedent(text))
    importlib.invalidate_caches()
    return path


@section
def module_not_on_the_path():
    path = _write(os.path.join(os.environ["TMPDIR"], "apart"), "lies_apart", """
        HELD = 4
        class Own(Exception): pass
        def function(one): return one + HELD
        def raises(): raise Own("of a module apart")
    """)  # fmt: skip
    spec = importlib.util.spec_from_file_location("lies_apart", path)
    module = sys.modules["lies_apart"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    raised = call(module.raises)
    # A name that means something else to the worker.
    other = importlib.util.spec_from_file_location("not_in_sys_modules", path)
    unknown = importlib.util.module_from_spec(other)
    other.loader.exec_module(unknown)
    return {
        "value": call(module.function, 3).value,
        "own": [type(raised.exception) is module.Own, seen(raised)["error"]],
        "unknown": seen(call(unknown.function, 3)),
    }


@section
def path_follows():
    folder = os.path.join(os.environ["TMPDIR"], "added")
    _write(folder, "added_later", "VALUE = 'added later'\ndef function(): return VALUE\n")
    before = seen(call(tools.imports, "added_later"))["error"]["type"]
    sys.path.insert(0, folder)
    import added_later

    return {
        "before": before,
        "by_import": call(tools.imports, "added_later").value,
        "function": call(added_later.function).value,
    }


@section
def import_sees_the_environment():
    """What the caller has changed since its first call, seen by a module that is imported for a call."""
    folder = os.path.join(os.environ["TMPDIR"], "reads")
    _write(folder, "reads_at_import", """
        import os
        VALUE = [os.environ.get("SET_LATE"), os.getcwd()]
        def function(): return VALUE
    """)  # fmt: skip
    call(tools.plus, 1)
    before = os.getcwd()
    os.environ["SET_LATE"] = "yes"
    sys.path.insert(0, folder)
    os.chdir(folder)
    try:
        import reads_at_import

        return [call(reads_at_import.function).value, ["yes", folder]]
    finally:
        os.chdir(before)


@section
def imports_that_raise():
    folder = BAD
    _write(folder, "raises_elsewhere", """
        import os
        if os.getpid() != int(os.environ["CALLER_PID"]): raise OSError("not in a worker")
        def function(): return 1
    """)  # fmt: skip
    _write(folder, "exits_elsewhere", """
        import os, sys
        if os.getpid() != int(os.environ["CALLER_PID"]): os._exit(5)
        def function(): return 1
    """)  # fmt: skip
    import exits_elsewhere
    import raises_elsewhere

    raised, exited = seen(call(raises_elsewhere.function)), seen(call(exits_elsewhere.function))
    return {"raised": raised, "exited": exited, "after": call(tools.plus, 1).value}


@section
def file_opened_at_import():
    """Written to by calls on workers that imported it themselves, and on those forked after it was imported."""
    path = os.path.join(BAD, "written")
    _write(BAD, "keeps_a_file", f"""
        FILE = open({path!r}, "a")
        def function(text): return FILE.write(text + "\\n"), FILE.flush()
    """)  # fmt: skip
    import keeps_a_file

    first = [call(keeps_a_file.function, f"first {number}").status for number in range(2)]
    for _ in range(6):
        call(tools.kill_self)
    later = [call(keeps_a_file.function, f"later {number}").status for number in range(2)]
    with open(path) as file:
        return {"first": first, "later": later, "lines": file.read().split("\n")[:-1]}


@section
def threads_are_their_own_calls():
    """A module of which only the nursery and the workers after it have threads: other calls have left none behind."""
    flag = os.path.join(BAD, "flag")
    _write(BAD, "threads_in_the_nursery", f"""
        import os, threading, time
        if os.path.exists({flag!r}):
            threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        elif os.getpid() != int(os.environ["CALLER_PID"]):
            open({flag!r}, "w").close()
        def function(): return 5
    """)  # fmt: skip
    import threads_in_the_nursery

    first = call(threads_in_the_nursery.function).value
    for _ in range(6):
        call(tools.kill_self)
    return {"first": first, "others": [call(tools.plus, number).leftover for number in range(4)]}


@section
def import_that_hangs():
    folder = BAD
    _write(folder, "hangs_elsewhere", """
        import os, time
        if os.getpid() != int(os.environ["CALLER_PID"]): time.sleep(30)
        def function(): return 1
    """)  # fmt: skip
    import hangs_elsewhere

    with deadstop.deadline(0.7):
        result, elapsed = timed(lambda: call(hangs_elsewhere.function))
    return {"result": seen(result), "elapsed": elapsed, "after": call(tools.plus, 1).value}


def _one_nursery():
    """What there is, once it is no more beginning anew, and no child of its has its name still."""
    names = own_processes()
    return names if sum(name.startswith("deadstop-nurs") for name in names) == 1 else None


@section
def import_that_starts_a_thread():
    folder = BAD
    _write(folder, "starts_thread", """
        import os, threading, time
        WHERE = os.getpid()
        STARTED = threading.Thread(target=time.sleep, args=(1000,), daemon=True)
        STARTED.start()
        def function(): return STARTED.is_alive()
        def plain(): return 3
    """)  # fmt: skip
    import starts_thread

    first = call(starts_thread.function)
    later = [call(starts_thread.function) for _ in range(3)]
    many = at_once(*[lambda: call(starts_thread.plain).value for _ in range(6)])
    others = [call(tools.plus, number).value for number in range(5)]
    names = until(_one_nursery)
    return {
        "first": seen(first), "later": [seen(each) for each in later], "many": many,
        "others": others, "names": names,
    }  # fmt: skip


@section
def nursery_meets_thread_module():
    """A module that starts no thread where it is first loaded, in a worker, but does in the nursery."""
    folder = BAD
    marker = os.path.join(folder, "second-time")
    _write(folder, "thread_the_second_time", f"""
        import os, threading, time
        try:
            fd = os.open({marker!r}, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        def function(): return 5
    """)  # fmt: skip
    spec = importlib.util.spec_from_file_location(
        "thread_the_second_time", os.path.join(folder, "thread_the_second_time.py")
    )
    module = sys.modules["thread_the_second_time"] = types.ModuleType("thread_the_second_time")
    module.__spec__, module.__file__ = spec, spec.origin
    exec("def function(): return 5", module.__dict__)
    first = call(module.function).value
    # New workers have to be forked from it now: kill those there are.
    for _ in range(6):
        call(tools.kill_self)
    values = at_once(*[lambda: call(module.function).value for _ in range(4)])
    again = at_once(*[lambda: call(tools.sleep, 0.05, 1).value for _ in range(6)])
    return {"first": first, "values": values, "again": again, "alive": call(tools.plus, 1).value}


if __name__ == "__main__":
    main()
