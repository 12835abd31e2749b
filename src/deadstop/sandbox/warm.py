# SPDX-License-Identifier: Apache-2.0
"""Sandboxes held ready: made, empty, without a record or a life until somebody takes one. Off unless asked for.

They end with the server as all do. One that has ended meanwhile is not given out.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING

from ..errors import DeadstopError
from .making import Made, kind_of, prepare
from .wishes import Wish

if TYPE_CHECKING:
    from .host import Host


class Warm:
    """`settings.warm` of `settings.warm_template`, as a client gets them that asks for nothing else."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._ready: deque[Made] = deque()
        self._filling = False

    def _wish(self) -> Wish:
        settings = self.host.settings
        wish = Wish(template=settings.warm_template, memory=settings.memory, pids=settings.pids, disk=settings.disk)
        return dataclasses.replace(wish, net=settings.net)

    def take(self, wish: Wish) -> Made | None:
        """One that will do for this wish, or None. Another is made in its place."""
        wanted = kind_of(wish, self.host.templates.resolve(wish.template))
        while self._ready and self._ready[0].key[1:] == wanted[1:]:
            made = self._ready.popleft()
            self.fill()
            if made.key == wanted and not made.link.closed and not made.gone:
                return made
            made.link.close()  # it has ended, or has what the template was before
            self.host.spawn(self.host.store.discard(made.layer.id))
        self.fill()  # what kept it from being filled may be over
        return None

    def fill(self) -> None:
        if self.host.settings.warm and not self._filling and not self.host.closing:
            self._filling = True
            self.host.spawn(self._fill())

    async def _fill(self) -> None:
        wish = self._wish()
        try:
            while len(self._ready) < self.host.settings.warm and not self.host.closing:
                template = self.host.templates.resolve(wish.template)
                image = self.host.templates.image_of(template)
                made = await prepare(self.host, wish, image, template, record_life=None)
                made.watch()
                self._ready.append(made)
        except DeadstopError as problem:
            self.host.log("warm_pool", problem=str(problem))
        finally:
            self._filling = False

    def close(self) -> None:
        for made in self._ready:
            made.link.close()
        self._ready.clear()
