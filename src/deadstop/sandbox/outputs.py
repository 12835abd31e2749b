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

    def next_file(self, sandbox_id: str) -> str:
        """For the next of its commands that ends; of more than KEPT the oldest is overwritten."""
        count = self._counts[sandbox_id] = self._counts.get(sandbox_id, -1) + 1
        return os.path.join(self.folder, sandbox_id, f"{count % KEPT:04}.json")

    @staticmethod
    def keep(ended: Exec, path: str) -> None:
        """A full disk loses it on disk only; memory has it while the server runs."""
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(json.dumps(ended.document()))
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
