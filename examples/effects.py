# SPDX-License-Identifier: Apache-2.0
"""A tool whose answer is lost: unknown, looked up, settled, and done once. About a second; needs deadstop[ledger].

The service is deadstop.testing.Authority: it does what it is asked, and closes the connection instead of answering.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import urllib.request

import deadstop
from deadstop.testing import Authority


def create_deployment(op: deadstop.Operation, service: str, revision: str) -> str:
    body = json.dumps({"revision": revision}).encode()
    request = urllib.request.Request(f"{service}/deployments", body, op.headers(), method="POST")
    with urllib.request.urlopen(request, timeout=5) as reply:
        return str(json.load(reply)["id"])


def main(service: Authority) -> int:
    tool = deadstop.tool(
        create_deployment,
        timeout=10,
        effect=deadstop.Effect(
            retry="if_not_accepted",
            fingerprint=["revision"],
            reconcile=deadstop.HttpQuery(url=f"{service.url}/operations/by-key/{{key}}", state="state"),
            consistent=True,
        ),
    )
    release = deadstop.Call(tool, service.url, "a1b2c3").options(key="release-7")

    lost = deadstop.call(release)
    assert lost.operation is not None
    print(f"first call:  {lost.status}, effect {lost.effect}, operation {lost.operation['state']}")

    again = deadstop.call(release)
    sent = len(service.requests(writes=True))
    print(f"second call: {again.status}, effect {again.effect}; requests sent so far: {sent}")

    record = deadstop.reconcile(lost.operation["id"])
    print(f"looked up:   {record.verdict}, operation {record.state}")

    after = deadstop.call(release)
    print(f"third call:  {after.status}, effect {after.effect}; effects at the service: {service.effects()}")

    with deadstop.Ledger.open() as ledger:
        print("trail:       " + ", ".join(entry.kind for entry in ledger.trail(record.op_id)))
    return 0 if (after.ok, service.effects()) == (True, 1) else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, Authority("accept_then_drop", times=1) as authority:
        os.environ["DEADSTOP_LEDGER"] = os.path.join(folder, "ledger.db")
        sys.exit(main(authority))
