# SPDX-License-Identifier: Apache-2.0
"""Makes the files that tests read: dumps, kernel dumps, checkpoints, and recordings of real runs.

`records` are values and calls as JSON, `dumps` writes them (or those of arrays) as the dump of a
rank. `networks`, `programs` and `peer_pairs` are dumps of whole made-up runs, `recordings` runs a
debugger. `kernel_trees`, `kernel_binaries` and `checkpoints` write the formats of other programs,
two of them with `protobuf`.
"""
