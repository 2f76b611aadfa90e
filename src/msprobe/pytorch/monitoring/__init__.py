# SPDX-License-Identifier: Apache-2.0
"""The training monitor for PyTorch: what `TrainerMon` installs, and how values become rows.

Begin at `trainer_mon.py`. `collector.py` opens and ends steps; `parameters.py` and
`communication.py` read tensors into the rows of `msprobe.monitor.collecting`, where the formulas of
`features.py` are, too.
"""
