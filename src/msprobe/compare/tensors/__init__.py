# SPDX-License-Identifier: Apache-2.0
"""Tensor files of two dumps, measured: which pairs, in which order, by how many threads.

Enter at `tensor_rows`. `schedule` distributes the pairs, `tensor_pairs` measures one,
`finished_pairs` keeps results for a comparison that goes on after an interruption, `processing`
multiplies with matrices first. Measures and never judges: that is `msprobe.compare.verdicts`.
"""
