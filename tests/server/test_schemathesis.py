# SPDX-License-Identifier: Apache-2.0
"""Requests made by the schemathesis command line from the server's own document, as somebody else would run it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("schemathesis", reason="schemathesis is not installed")

from server_process import Serving

NAME = "fuzzed"
BOUND_S = 100.0
# They do not end by themselves, or take packages from elsewhere.
UNASKED = r"/events$|/attach$|/exec/ws$|/templates/build$"
CONFIGURATION = f"""
hooks = "fuzzing"
[checks]
# A key that was used before, a name that is taken, a tree too large for the server: what the document cannot say.
positive_data_acceptance.enabled = false
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 501, 503, 504, 507]
[parameters]
"path.ref" = "{NAME}"
# Closing a session that there never was is no error, whatever it is called.
[[operations]]
include-name = "DELETE /v1/sandboxes/{{ref}}/repl/sessions/{{sid}}"
checks.negative_data_rejection.enabled = false
"""


@pytest.mark.slow
@pytest.mark.timeout(BOUND_S + 20)
def test_generated_requests_find_no_defect(start_server: Callable[..., Serving], tmp_path: Path) -> None:
    server = start_server("--max-sandboxes", "40")
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION)
    shutil.copy(Path(__file__).with_name("fuzzing.py"), tmp_path)
    facts = {"PORT": str(server.port), "TOKEN": server.token, "NAME": NAME}
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "NO_PROXY": "*", "PYTHONPATH": str(tmp_path),
        **{f"DEADSTOP_FUZZED_{name}": value for name, value in facts.items()},
    }  # fmt: skip
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/v1/openapi.json",
        "-H", f"Authorization: Bearer {server.token}", "--exclude-path-regex", UNASKED,
        "--phases", "coverage,fuzzing", "--max-examples", "3", "--generation-deterministic", "--no-shrink",
        "--request-timeout", "8", "--continue-on-failure", "--warnings", "off", "--no-color",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, timeout=BOUND_S, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout.decode()[-8000:] + done.stderr.decode()[-2000:]
    assert b"Tested: 0" not in done.stdout and b"Tested:" in done.stdout
    server.works()
