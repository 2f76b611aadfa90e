# SPDX-License-Identifier: Apache-2.0
"""Where two runs part, asked from the cheapest question to the dearest.

Enter at `ladder.climb` (recordings of two runs) or `bisect.bisect_runs` (signatures of whole runs).
The room reads dumps and what `compare/` says of them; it shows nothing by itself.
"""
