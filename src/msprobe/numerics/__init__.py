# SPDX-License-Identifier: Apache-2.0
"""Number types, metrics of two arrays, and tolerances.

Enter at `elementwise.compare_arrays` for two arrays, `elementwise.ElementAccumulator` for chunks of
them; `number_types` knows kinds and resolutions, `tolerances` how far apart values may be.
Definitions of the metrics: docs/metrics.md. Nothing here judges. May import `dump/`.
"""
