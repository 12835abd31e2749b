# SPDX-License-Identifier: Apache-2.0
"""Makes the strongest boundary of the kind asked for that this host gives, and says what was weaker."""

from __future__ import annotations

import errno
import os

from ..errors import BoundaryUnavailable
from ..model import Place
from . import limits
from .base import Boundary
from .cgroup import Hierarchies, denied
from .policy import Bind
from .process import ProcessBoundary
from .sandbox import SandboxBoundary, find_bwrap
from .subreaper import SubreaperBoundary

# What the kernel answers where namespaces are refused: by policy, by a count, by a filter, by its build.
REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EUSERS, errno.ENOSYS, errno.EINVAL)


def open_boundary(place: Place, hierarchies: Hierarchies) -> Boundary:
    """Start making the boundary. Raises BoundaryUnavailable; a sandbox is never replaced by something weaker."""
    if place.isolation == "sandbox":
        return _sandbox(place, hierarchies)
    if "userns" not in denied():
        applied = limits.apply(place.limits, "process", hierarchies, user_namespace=os.geteuid() != 0)
        try:
            return ProcessBoundary(applied)
        except OSError as problem:
            if problem.errno not in REFUSALS:
                raise
    return open_fallback(place, hierarchies)


def open_fallback(place: Place, hierarchies: Hierarchies) -> Boundary:
    """The `process` boundary for hosts that refuse namespaces."""
    return SubreaperBoundary(limits.apply(place.limits, "process", hierarchies, user_namespace=False))


def _sandbox(place: Place, hierarchies: Hierarchies) -> Boundary:
    if "userns" in denied():
        raise BoundaryUnavailable("sandbox", "namespaces are denied by DEADSTOP_DENY", "unset it")
    program = find_bwrap()
    binds = tuple(Bind(*bind) for bind in place.binds)
    applied = limits.apply(place.limits, "sandbox", hierarchies, user_namespace=os.geteuid() != 0)
    if place.files and place.limits.disk:
        limits.bound_files(place.limits, place.files, applied)
    try:
        return SandboxBoundary(applied, binds=binds, net=place.net, program=program, files=place.files)
    except BoundaryUnavailable:
        if applied.group:
            applied.group.remove()  # nothing was in it
        raise
    except OSError as problem:
        if problem.errno in REFUSALS:
            raise BoundaryUnavailable("sandbox", *_refused(problem)) from None
        raise


def _refused(problem: OSError) -> tuple[str, str]:
    reason = f"the host refuses namespaces ({problem.filename or 'clone3'}: {problem.strerror})"
    return reason, "allow user namespaces for this user, or run where they are allowed"
