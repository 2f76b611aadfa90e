# SPDX-License-Identifier: Apache-2.0
"""Judges single calls against a reference in higher precision.

``judging.py`` holds a result against its reference, within the error that ``budgets.py`` allows.
``verify_call.py`` does so for a call and its backward passes, ``verify_dump.py`` for all calls of a
dump. Enter at the latter: it is what `msprobe verify` runs.

The documented accuracy check: ``standards/`` holds its precision standards, ``accuracy_csv.py`` its
files, ``precision_compare.py`` judges two devices by their files of details.
"""
