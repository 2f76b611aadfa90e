# SPDX-License-Identifier: Apache-2.0
"""Noise of a program, measured: recordings of task ``noise_floor`` beside an ordinary one.

`floor.NoiseFloor` measures how far recordings are from their reference, and judges comparisons with
that reference; `digits.trusted_digits` says how many digits of each value can be trusted. How few
recordings tell how much is in `spread`.
"""
