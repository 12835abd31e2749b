# SPDX-License-Identifier: Apache-2.0
"""Effects on the world: sent, asked about, settled."""
