# SPDX-License-Identifier: Apache-2.0
"""Compare the tensor files of two dumps: choice of pairs, order, threads.

Enter at `tensor_rows`. `schedule` distributes the pairs, `tensor_pairs` measures one,
`finished_pairs` keeps results for a comparison that goes on after an interruption, `processing`
multiplies with matrices first. Measures and never judges: that is `msprobe.compare.verdicts`.
"""
