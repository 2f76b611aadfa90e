# SPDX-License-Identifier: Apache-2.0
"""What each function is: its name, and what is done with a call of it.

Enter at `api_table.ApiTable.lookup`. `api_identity` names a function, `api_rules` holds the
defaults (data: ``api_table.yaml``), `api_list` is the user's file, `operator_names` tells ``a + b``
from ``a.add(b)``.
"""
