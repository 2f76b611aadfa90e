# SPDX-License-Identifier: Apache-2.0
"""Contents of tensors: statistics, checksums, copies, and a memo of unchanged values.

`adapter` is the seam to `msprobe.capture`; `readable` decides whether memory may be read at all,
`memo` remembers values that are provably unchanged.
"""
