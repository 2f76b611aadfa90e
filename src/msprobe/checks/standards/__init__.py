# SPDX-License-Identifier: Apache-2.0
"""The precision standards of mindstudio-probe's documents: metrics, limits, verdicts.

`standard.Standards` says which standard judges an operator and with which limits; all numbers are
in `standards.yaml`, the lists of operators in `api_precision_standard.yaml`. `metrics` measures,
`first_verdict` judges one output, `ratio_verdict` two devices against each other. NumPy only.
These verdicts are shown beside those of `checks`, which do not depend on the size of the values.
"""
