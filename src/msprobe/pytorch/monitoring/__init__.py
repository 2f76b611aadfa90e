# SPDX-License-Identifier: Apache-2.0
"""The training monitor for PyTorch: what `TrainerMon` installs, and how values become rows.

Begin at `trainer_mon.py`. `collector.py` opens and ends steps; `activations.py`, `parameters.py`,
`run_numbers.py` and `communication.py` each read one kind of tensors into `step_rows.py`.
"""
