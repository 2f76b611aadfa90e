# SPDX-License-Identifier: Apache-2.0
"""Two checkpoints: which parameters were added, removed, renamed or changed, and by how much.

Enter at `comparing.compare_checkpoints`, or at `opening.open_checkpoint` for one. Every format has
a module that says where in a file each parameter lies (`safetensors_file`, `torch_file` …);
nothing in a file is ever executed, and values are read in pieces (`spans`) so that memory stays
bounded. The room may import `dump/`, `numerics/` and `report/`, and no framework.
"""
