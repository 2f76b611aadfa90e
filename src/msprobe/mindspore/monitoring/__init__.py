# SPDX-License-Identifier: Apache-2.0
"""The training monitor for MindSpore's dynamic graph: what `TrainerMon` installs and reads.

Begin at `trainer_mon.py`; what it shares with PyTorch is in `msprobe.monitor.collecting`.
"""
