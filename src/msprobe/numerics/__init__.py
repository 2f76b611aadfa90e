# SPDX-License-Identifier: Apache-2.0
"""Numbers and their types: how far apart two arrays are, and what their types can resolve.

Enter at `elementwise.compare_arrays` for two arrays, `elementwise.ElementAccumulator` for chunks of
them; `number_types` knows kinds and resolutions, `tolerances` how far apart values may be.
Definitions of the metrics: docs/metrics.md. Nothing here judges. May import
`msprobe.dump`.
"""
