# SPDX-License-Identifier: Apache-2.0
"""Pairs the operations of the target with those of the reference.

Enter at `join_decompositions` where the frameworks differ, then at `pair_operations`. Mapping files
go first (`data_mapping`, `call_pairs`, `cell_mapping`, `api_mapping`, `layer_mapping`). Then come
equal names, other names of one operation (`msprobe.operators`, `module_paths`), and the order of
the calls (`aligning`, on `sequences` and `runs`). `matcher` puts these together; backward records
follow their forward calls there.
"""

from msprobe.compare.matching.data_mapping import data_mapping_of
from msprobe.compare.matching.decompositions import join_decompositions
from msprobe.compare.matching.pairing import pair_operations

__all__ = ["data_mapping_of", "join_decompositions", "pair_operations"]
