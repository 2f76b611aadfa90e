# SPDX-License-Identifier: Apache-2.0
"""The gradient probe: a summary and the signs of each gradient, and the comparison of two runs.

Enter at `probe.py` (`ProbeWriter` writes the files of one process) and `comparing.py`
(`GradComparator`).
"""
