# SPDX-License-Identifier: Apache-2.0
"""Dumps on disk: values, names of files and folders, journal, writer, reader.

Writing starts at [`DumpWriter`][msprobe.dump.writer.DumpWriter], which hands out one `RankDump`
for each step; reading starts at `msprobe.open_dump`, and `call_forest` gives the calls of a rank as
trees. `layout` holds every file name, `journal` and `json_files` the two forms in which records lie
there. `formats/` reads zip, pickle, npy and protobuf, for other rooms too. This room imports no
framework and no other room of msprobe, only modules beside the rooms (`errors`, `api_prefixes`).
"""
