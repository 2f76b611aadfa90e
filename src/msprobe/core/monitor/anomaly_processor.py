# SPDX-License-Identifier: Apache-2.0
"""``python -m msprobe.core.monitor.anomaly_processor``: order the alarms of all ranks."""

from __future__ import annotations

import sys

from msprobe.monitor.alerts.anomaly_analysis import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
