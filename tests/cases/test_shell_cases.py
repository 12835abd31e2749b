# SPDX-License-Identifier: Apache-2.0
"""Commands that are known to break tool runners, one each, on every host and in both boundaries. The inputs are in inputs/."""

from __future__ import annotations

import hosts
import pytest
from grounds import CONTAINED, SANDBOX, Case, Ended, Table, completed, timed_out

from deadstop.results import ToolResult

table = Table()
case = table.case


@table.every_case()
def test_case(request: pytest.FixtureRequest, host: hosts.Host, isolation: str, case: Case) -> None:
    table.verify(request, host, isolation, case)
