# SPDX-License-Identifier: Apache-2.0
"""Alerts: rules over the series of a run, and the incidents that they find.

Enter at `engine.py`: `Alerts` listens to rows while they are made, `replay` judges a stored run.
`rules.py` and `ranks.py` find signals, `incidents.py` joins them, `actions.py` tells the user.
`documented.py` holds the rules that configurations of mindstudio-probe name.
"""
