# SPDX-License-Identifier: Apache-2.0
"""Tools around the kernel dumps that MindSpore's own Dump writes; needs no MindSpore.

`code_mapping` joins them to lines of the program, `binary_dump` converts the binary files of the
asynchronous mode, `dump_settings` checks and explains the file that switches the Dump on, and
`normalising` reduces the Dump's output to the configured parts. Kernel dumps are read in
`msprobe.dump` (`kernel_files`, `kernel_views`). May import `config/`, `capture/`,
`dump/` and `report/`.
"""
