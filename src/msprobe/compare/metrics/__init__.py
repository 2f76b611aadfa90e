# SPDX-License-Identifier: Apache-2.0
"""Numbers that say how far apart two values are; definitions in docs/metrics.md.

Enter at `elementwise.compare_arrays` for two arrays, `elementwise.ElementAccumulator` for chunks of
them, `tensor_pairs` for two files. Nothing here judges: that is `msprobe.compare.verdicts`. May
import `msprobe.compare.model` and `msprobe.dump`.
"""
