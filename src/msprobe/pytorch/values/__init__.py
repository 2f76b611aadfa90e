# SPDX-License-Identifier: Apache-2.0
"""What a tensor holds: statistics, checksums, copies, and what is known of unchanged values.

`adapter` is the seam to `msprobe.capture`; `readable` decides whether memory may be read at all,
`memo` remembers values that are provably unchanged.
"""
