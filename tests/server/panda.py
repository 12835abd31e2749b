# SPDX-License-Identifier: Apache-2.0
"""The unmodified PandaStack SDK, aimed at a server of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pandastack
from server_process import Serving


@contextmanager
def aimed_at(server: Serving, **options: Any) -> Iterator[pandastack.Client]:
    """A client, which is also the default one that `Sandbox.create` and its like use."""
    client = pandastack.Client(api_url=server.url, api_key=server.token, **options)
    pandastack.set_default_client(client)
    try:
        yield client
    finally:
        pandastack.set_default_client(None)
        client.session.close()
