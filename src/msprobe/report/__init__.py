# SPDX-License-Identifier: Apache-2.0
"""Views of a dump for people: what it holds, its tree of calls, one record in detail.

Start at `overview_lines`, `tree_lines` and `record_lines` in the modules of these names; each
returns `rich.text.Text` lines for a given width, so that the caller decides where they go.
`find_nonfinite` looks for NaN before that. `as_json` gives the same facts to programs. This room
imports `dump/` only.
"""
