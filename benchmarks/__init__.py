# SPDX-License-Identifier: Apache-2.0
"""What deadstop costs and how fast it ends things, measured beside what one would use without it."""
