# SPDX-License-Identifier: Apache-2.0
"""What a run was started with, collected into a zip file, and two such files compared.

Enter at `collecting.collect_static`, `observing.RunObserver` and `comparing.compare_packs`; `pack`
knows the file. Collected are the environment (`environment`), packages, system and arguments.
Seeds, data and weights are observed while the run goes on; the framework's own room says how to
read them (`model_watch.Framework`). The room may import `dump/` and `report/`.
"""
