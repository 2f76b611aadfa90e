# SPDX-License-Identifier: Apache-2.0
"""What a run was started with, collected into a zip file, and two such files compared.

Enter at `collecting.collect_static` and `comparing.compare_packs`; `pack` knows the file. Collected
are the environment (`environment`), packages, system and arguments; seeds, data and weights come
from a hook in the framework's own room. The room may import `dump/` and `report/`.
"""
