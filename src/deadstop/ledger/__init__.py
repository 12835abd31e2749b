# SPDX-License-Identifier: Apache-2.0
"""What happened: operations, attempts, evidence. Knows nothing of processes, and nothing of HTTP."""
