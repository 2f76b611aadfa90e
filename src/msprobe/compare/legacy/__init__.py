# SPDX-License-Identifier: Apache-2.0
"""The tables of mindstudio-probe, made of our comparisons.

Programs that read its results find here the same columns in the same order, with the same values
in them (docs/reference/compare-columns.md says what each holds and where ours differ on purpose).
Enter at `tables.legacy_table`; `first_difference` and `merge` make the other files. May import what
`compare/` may.
"""
