# SPDX-License-Identifier: Apache-2.0
"""Views of dumps and comparisons for people, and tables as files.

Of a dump: start at `overview_lines`, `tree_lines` and `record_lines` in the modules of these names;
each returns `rich.text.Text` lines for a given width, so that the caller decides where they go.
`find_nonfinite` looks for NaN before that. `as_json` gives the same facts to programs.

Of a comparison, given its summary and its table: `short_lines` and `comparison_lines` for the
terminal, `write_comparison_page` for a browser, `notebook_html` for a notebook. `comparison_answer`
decides what all of them say first; `comparison_facts` gathers operations and modules.

`table_files.write_table` writes xlsx, csv and parquet; `page_file.write_page` writes the HTML page
of any report. This room imports `dump/` only.
"""
