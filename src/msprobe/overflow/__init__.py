# SPDX-License-Identifier: Apache-2.0
"""One finished dump: which call made the first NaN or infinity, and how it spread over ranks.

Enter at `analysis.analyze_overflow`. Each rank is examined alone (`one_rank`), then ranks are
connected through their communication calls (`across_ranks`). `updates` and `scaling` read the facts
of optimizers and gradient scalers, `run_up` looks back from the first finding; `severity` grades
single records. The room may import `dump/`, `operators/`, `collectives/` and `report/`, and no
framework.
"""
