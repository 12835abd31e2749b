# SPDX-License-Identifier: Apache-2.0
"""What runs on hosts that have no deadstop: one file, copied there as it is."""
