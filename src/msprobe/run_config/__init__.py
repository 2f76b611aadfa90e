# SPDX-License-Identifier: Apache-2.0
"""Start settings of a run: collect them into a zip file, and compare two such files.

Enter at `collecting.collect_static`, `observing.RunObserver` and `comparing.compare_packs`; `pack`
knows the file. Collected are the environment (`environment`), `packages`, `system` and arguments:
of launch scripts (`shell_scripts`) and of the running program (`program_arguments`,
`live_objects`). Seeds, data and weights are observed while the run goes on; the framework's own
room says how to read them (`model_watch.Framework`), `random_calls` and `value_tables` compare
them. Differences have a level (`levels.Level`); `conclusion` names the earliest cause of them. The
room may import `dump/` and `report/`.
"""
