# SPDX-License-Identifier: Apache-2.0
"""Collect the steps of a training, whatever its framework.

`front.py` is the part of `TrainerMon` that both frameworks share, `collector.py` opens and ends
steps. A framework derives from both, and says in a `step_rows.Reading` how its tensors are read.
"""
