# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

pytest.register_assert_rewrite("grounds")  # its assertions explain themselves, too
