# SPDX-License-Identifier: Apache-2.0
"""What commands printed and how they ended, on disk for as long as their sandbox's record is kept."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

from .execs import Exec

KEPT = 500  # of one sandbox


class Outputs:
    """One folder for each sandbox, one file for each command that has ended."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._counts: dict[str, int] = {}

    def keep(self, ended: Exec) -> None:
        """A full disk loses it on disk only; memory has it while the server runs."""
        place = os.path.join(self.folder, ended.sandbox_id)
        count = self._counts.get(ended.sandbox_id, 0)
        try:
            if count == 0:
                os.makedirs(place, mode=0o700, exist_ok=True)
            self._counts[ended.sandbox_id] = count + 1
            with open(os.path.join(place, f"{count % KEPT:04}.json"), "w", encoding="utf-8") as file:
                json.dump(ended.document(), file)
        except OSError:
            pass

    def read(self, sandbox_id: str) -> list[dict[str, Any]]:
        """Of a sandbox of an earlier server, oldest first."""
        place, found = os.path.join(self.folder, sandbox_id), []
        try:
            names = sorted(os.listdir(place))
        except OSError:
            return []
        for name in names:
            try:
                with open(os.path.join(place, name), encoding="utf-8") as file:
                    found.append(json.load(file))
            except (OSError, ValueError):
                continue
        return sorted(found, key=lambda document: str(document["started_at"]))

    def forget(self, sandbox_id: str) -> None:
        shutil.rmtree(os.path.join(self.folder, sandbox_id), ignore_errors=True)
        self._counts.pop(sandbox_id, None)
