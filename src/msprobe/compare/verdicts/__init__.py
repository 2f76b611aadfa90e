# SPDX-License-Identifier: Apache-2.0
"""Verdicts on rows: how their values relate, and which call a difference originates from.

`status.judge_rows` gives every row a status by the tolerances of `tolerances`;
`origin.find_origins` tells calls that introduce a difference from those that inherit it;
`summary.Summary` ranks the culprits and says what to do next. Nothing here reads tensors.
Imports `dump/` and its siblings.
"""
