# SPDX-License-Identifier: Apache-2.0
"""What is not allowed is refused in one line before anything starts; and the verbs that only print."""

from __future__ import annotations

import json
import subprocess

import pytest

from hosts import Host

MARKER = "started"

# words before the command, and what the one line must name: the value, and what is allowed
REFUSED = [
    (["--timeout", "0"], ["'0'", "above zero"]),
    (["--timeout", "-1"], ["'-1'", "above zero"]),
    (["--timeout", "nan"], ["'nan'", "30s"]),
    (["--timeout", "inf"], ["'inf'", "30s"]),
    (["--timeout", "abc"], ["'abc'", "30s"]),
    (["--timeout", ""], ["''", "30s"]),
    (["--idle-timeout", "0"], ["'0'", "above zero"]),
    (["--grace", "-1"], ["'-1'", "above zero"]),
    (["--memory", "0"], ["'0'", "above zero"]),
    (["--memory", "1.5x"], ["'1.5x'", "512M"]),
    (["--disk=-5M"], ["'-5M'", "above zero"]),
    (["--output-limit", "lots"], ["'lots'", "above zero"]),
    (["--pids", "0"], ["0", "above zero"]),
    (["--pids", "-3"], ["-3", "above zero"]),
    (["--pids", "x"], ["'x'", "whole number"]),
    (["--cpus", "0"], ["0", "above zero"]),
    (["--cpus", "nan"], ["nan", "finite"]),
    (["--cpus", "many"], ["'many'", "number"]),
    (["--tail", "0"], ["'0'", "above zero"]),
    (["--isolation", "moon"], ["'moon'", "process", "sandbox"]),
    (["--on-input-wait", "hope"], ["'hope'", "wait", "kill"]),
    (["--cwd", "no/such/folder"], ["no/such/folder", "folder"]),
    (["--env", "=value"], ["''", "name"]),
    (["--moonlight"], ["--moonlight", "--help"]),
    (["--bind", "."], ["--bind", "sandbox"]),
    (["--ro-bind", "."], ["--ro-bind", "sandbox"]),
    (["--net"], ["--net", "sandbox"]),
    (["--isolation", "sandbox", "--bind", "no/such/path"], ["no/such/path", "exist"]),
    (["--isolation", "sandbox", "--ro-bind", "no/such/path:/data"], ["no/such/path", "exist"]),
]


@pytest.mark.parametrize(("words", "named"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_a_bad_option_is_refused_in_one_line_and_nothing_starts(
    one_host: Host, words: list[str], named: list[str]
) -> None:
    marker = one_host.folder / MARKER
    done = one_host.cli("run", *words, "--", "touch", str(marker))
    assert done.returncode == 125
    assert done.stdout == b""
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1, lines
    assert [text for text in named if text not in lines[0]] == [], lines[0]
    assert not marker.exists()


def test_the_marker_would_have_been_made(one_host: Host) -> None:
    """The check of the tests above can fail."""
    marker = one_host.folder / MARKER
    try:
        assert one_host.cli("run", "--", "touch", str(marker)).returncode == 0
        assert marker.exists()
    finally:
        marker.unlink(missing_ok=True)


@pytest.mark.parametrize("words", [[], ["--"], ["--", ""], ["--timeout", "1", "--"]])
def test_an_empty_command_is_refused(one_host: Host, words: list[str]) -> None:
    done = one_host.cli("run", *words)
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, len(lines), done.stdout) == (125, 1, b"")
    assert "empty" in lines[0] and "program" in lines[0]


def test_a_word_too_large_for_the_kernel_is_refused_with_both_sizes(one_host: Host) -> None:
    """Such a word cannot reach us on a command line, so the entry point is called with it."""
    marker = one_host.folder / MARKER
    script = (
        "import sys; from deadstop.cli import main; sys.stderr = sys.stdout;"
        "status = main(['run', '--', 'touch', sys.argv[1], 'x' * 131_072]); print(status)"
    )
    lines = one_host.script(script, str(marker)).splitlines()
    assert len(lines) == 2 and lines[1] == "125", lines
    assert "131072" in lines[0] and "131071" in lines[0] and "stdin" in lines[0]
    assert not marker.exists()


def test_the_largest_word_that_the_kernel_takes_is_passed_on(one_host: Host) -> None:
    result = one_host.run("--", "printf", "%s", "x" * 131_071)
    assert (result["status"], result["exit_code"], result["stdout"]["bytes_total"]) == ("completed", 0, 131_071)


@pytest.mark.parametrize("words", [[], ["fly"], ["--moonlight"], ["completion"], ["completion", "fish"]])
def test_a_bad_verb_is_one_line(one_host: Host, words: list[str]) -> None:
    done = one_host.cli(*words)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (125, b"", 1)
    assert b"deadstop" in done.stderr and b"--help" in done.stderr


def test_options_after_the_command_are_the_commands_own(one_host: Host) -> None:
    done = one_host.cli("run", "--", "printf", "%s|", "--json", "--timeout", "0", "--")
    assert (done.returncode, done.stdout) == (0, b"--json|--timeout|0|--|")


# -- verbs that only print ------------------------------------------------------------------------------------------


def test_help_names_every_verb(one_host: Host) -> None:
    done = one_host.cli("--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert [verb for verb in ("run", "doctor", "schema", "completion") if verb not in done.stdout.decode()] == []


def test_help_of_run_names_options_and_exit_statuses(one_host: Host) -> None:
    done = one_host.cli("run", "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    wanted = ["--timeout", "--grace", "--stdin", "--tty", "--json", "--isolation", "124", "125", "130", "122", "123"]
    assert [word for word in wanted if word not in done.stdout.decode()] == []


def test_version_is_one_line(one_host: Host) -> None:
    done = one_host.cli("--version")
    assert (done.returncode, done.stderr) == (0, b"")
    name, version = done.stdout.decode().split()
    assert name == "deadstop" and version[0].isdigit()


def test_the_schema_is_a_schema_and_a_result_fits_it(one_host: Host) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    done = one_host.cli("schema")
    assert (done.returncode, done.stderr) == (0, b"")
    schema = json.loads(done.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for words in (["true"], ["sleep", "30"], ["no-such-program"]):
        validator.validate(one_host.run("--timeout", "0.3", "--", *words))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({"status": "fine"})


def _completion(host: Host, *, hide_shtab: bool) -> subprocess.CompletedProcess[bytes]:
    hide = "sys.modules['shtab'] = None;" if hide_shtab else ""
    script = f"import sys; {hide} from deadstop.cli import main; sys.exit(main(['completion', 'bash']))"
    process = host.popen([host.python, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=20)
    return subprocess.CompletedProcess([], process.returncode, out, err)


def test_completion_without_shtab_says_what_to_install(one_host: Host) -> None:
    done = _completion(one_host, hide_shtab=True)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (125, b"", 1)
    assert b"shtab" in done.stderr and b"deadstop[completion]" in done.stderr


def test_completion_is_a_script_that_bash_accepts(one_host: Host) -> None:
    done = _completion(one_host, hide_shtab=False)
    if b"needs the package shtab" in done.stderr:
        pytest.skip("this interpreter has no shtab")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"--timeout" in done.stdout
    checked = subprocess.run(["bash", "-n"], input=done.stdout, capture_output=True, timeout=10)
    assert (checked.returncode, checked.stderr) == (0, b"")
