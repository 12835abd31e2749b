# SPDX-License-Identifier: Apache-2.0
"""What the schemathesis command line loads for test_schemathesis.py: a sandbox that lives, whatever was asked before.

Generated requests kill, hibernate and outlive the sandbox that they are about; before each it is there again.
"""

import http.client
import json
import os

import schemathesis

PORT, TOKEN, NAME = (os.environ[f"DEADSTOP_FUZZED_{name}"] for name in ("PORT", "TOKEN", "NAME"))


@schemathesis.hook
def before_call(context, case, kwargs):
    """The sandbox lives; the request ends: nothing is followed, and no command or wait is longer than a second."""
    if (case.path_parameters or {}).get("ref") == NAME and "resume" not in case.path:
        _ensure()
    if case.method.upper() == "POST" and case.path.endswith(("/sandboxes", "/fork", "/fork-tree", "/wake")):
        _make_room()
    query = case.query if isinstance(case.query, dict) else {}
    if str(query.get("follow")).lower() in ("true", "1", "yes", "on"):
        query["follow"] = "false"
    if isinstance(case.body, dict) and "sleep" in str(case.body.get("cmd")):
        case.body["cmd"] = "echo hello"  # the document's example, which takes its time to show a stream
    if case.path.endswith("/wait"):
        query["timeout_s"] = "0.2"


@schemathesis.serializer("application/x-tar")
def tar(context, value):
    return {"data": value if isinstance(value, bytes) else str(value).encode()}


def _ensure():
    if _ask("GET", f"/v1/sandboxes/{NAME}").get("status") == "running":
        return
    _ask("DELETE", f"/v1/sandboxes/{NAME}")
    made = _ask("POST", "/v1/sandboxes", {"name": NAME, "ttl_seconds": 120})
    assert made.get("status") == "running", made


def _make_room():
    """A server that is full refuses everything alike: those that were made end before there are too many."""
    others = [each["id"] for each in _ask("GET", "/v1/sandboxes?state=live")["items"] if each["name"] != NAME]
    for name in others if len(others) > 10 else ():
        _ask("DELETE", f"/v1/sandboxes/{name}")


def _ask(method, path, document=None):
    connection = http.client.HTTPConnection("127.0.0.1", int(PORT), timeout=10)
    try:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        connection.request(method, path, None if document is None else json.dumps(document), headers)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()
