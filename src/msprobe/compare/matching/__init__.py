# SPDX-License-Identifier: Apache-2.0
"""Which operation of the target is which operation of the reference.

Enter at `pair_operations`. Equal names come first, then other names of one operation
(`families`, `module_paths`), then the order of the calls (`aligning`, `sequences`, `runs`); mapping files
(`mapping_files`) overrule all of these. Backward records follow their forward calls.
"""

from msprobe.compare.matching.data_mapping import data_mapping_of
from msprobe.compare.matching.pairing import pair_operations

__all__ = ["data_mapping_of", "pair_operations"]
