# SPDX-License-Identifier: Apache-2.0
"""One POST of a CloudEvents envelope, all of it within one deadline. The one file of delivery that knows httpx2.

With a secret it is signed as Standard Webhooks do: the receiver checks HMAC-SHA256 over `id.timestamp.body`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import time
from typing import Any, NamedTuple

from ..errors import MissingExtra, UsageError
from .filling import as_seconds
from .http_exchange import certificates
from .loops import Loop

try:
    import httpx2
except ImportError:
    raise MissingExtra("delivering events", "ledger") from None

__all__ = ["CLOUDEVENT", "NotPosted", "Posted", "Poster", "key_of", "post_once", "signature"]

CLOUDEVENT = "application/cloudevents+json; charset=utf-8"
LIMIT_S = 15.0  # of one POST: looking up, connecting, sending, and the head of the answer
# Of the rest, so that the connection can be used again. Pieces of a byte each would keep the loop from others.
_DRAIN_S, _DRAIN_BYTES, _DRAIN_PIECES = 1.0, 64 << 10, 64
_PREFIX = "whsec_"


class Posted(NamedTuple):
    """An answer. What the receiver did with the event is its own matter: 2xx says that it has it."""

    status: int
    retry_after: float | None

    @property
    def taken(self) -> bool:
        return 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        """It never wants another one."""
        return self.status == 410


class NotPosted(Exception):
    """There was no answer; whether it came there nobody can say, unless it was `unreached`: nobody is there. The text
    holds nothing of the URL's path."""

    def __init__(self, text: str, *, unreached: bool = False) -> None:
        super().__init__(text)
        self.unreached = unreached


def key_of(secret: str | None) -> bytes | None:
    """The bytes to sign with: what follows `whsec_` in base64, else the text itself. Raises UsageError."""
    if not secret:
        return None
    if not secret.startswith(_PREFIX):
        return secret.encode()
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise UsageError("the webhook secret begins with whsec_, but what follows is no base64") from None
    if not key:
        raise UsageError("the webhook secret is whsec_ and nothing else: anybody could sign with it")
    return key


def signature(key: bytes, event_id: str, at: int, body: bytes) -> str:
    """The value of `webhook-signature`."""
    made = hmac.new(key, f"{event_id}.{at}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(made).decode()}"


class Poster:
    """Connections that are kept from one POST to the next, all on one event loop. No redirect is followed."""

    def __init__(self, secret: str | None = None, seconds: float = LIMIT_S) -> None:
        self._key, self._seconds = key_of(secret), seconds
        self._client: httpx2.AsyncClient | None = None

    async def __aenter__(self) -> Poster:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=5.0)
        # Without proxies of the environment: an event goes to the one who was named, and to nobody else.
        self._client = httpx2.AsyncClient(
            verify=certificates(), timeout=None, limits=limits, follow_redirects=False, trust_env=False
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def post(self, url: str, event_id: str, event: str) -> Posted:
        """Raises NotPosted where nobody answered in time."""
        body = event.encode("utf-8", "replace")
        try:
            return await self._post(url, body, self._headers(event_id, body))
        except TimeoutError:
            raise NotPosted(f"no answer within {self._seconds:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as problem:
            text = str(problem)
            hidden = url in text or not text
            shown = type(problem).__name__ if hidden else f"{type(problem).__name__}: {text}"
            raise NotPosted(shown, unreached=isinstance(problem, httpx2.ConnectError)) from None

    def _headers(self, event_id: str, body: bytes) -> dict[str, str]:
        at = int(time.time())
        headers = {"Content-Type": CLOUDEVENT, "User-Agent": "deadstop", "webhook-id": event_id,
                   "webhook-timestamp": str(at)}  # fmt: skip
        if self._key is not None:
            headers["webhook-signature"] = signature(self._key, event_id, at, body)
        return headers

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> Posted:
        assert self._client is not None
        posted: Posted | None = None
        try:
            async with asyncio.timeout(self._seconds) as limit:
                async with self._client.stream("POST", url, content=body, headers=headers) as response:
                    posted = Posted(response.status_code, as_seconds(response.headers.get("retry-after")))
                    limit.reschedule(asyncio.get_running_loop().time() + _DRAIN_S)
                    await _drain(response)
        except (TimeoutError, httpx2.HTTPError, OSError):
            if posted is None:
                raise
        return posted


async def _drain(response: Any) -> None:
    count = pieces = 0
    async for piece in response.aiter_raw():
        count, pieces = count + len(piece), pieces + 1
        if count > _DRAIN_BYTES or pieces > _DRAIN_PIECES:
            return


def post_once(url: str, event_id: str, event: str, secret: str | None = None, seconds: float = LIMIT_S) -> Posted:
    """One POST from a thread without an event loop. Raises NotPosted."""

    async def once() -> Posted:
        async with Poster(secret, seconds) as poster:
            return await poster.post(url, event_id, event)

    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(once())
