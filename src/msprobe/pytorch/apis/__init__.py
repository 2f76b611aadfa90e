# SPDX-License-Identifier: Apache-2.0
"""Names of torch's functions, and the treatment of their calls.

Enter at `api_table.ApiTable.lookup`. `api_identity` names a function, `api_rules` holds the
defaults (data: ``api_table.yaml``), `api_list` is the user's file, `operator_names` tells ``a + b``
from ``a.add(b)``.
"""
