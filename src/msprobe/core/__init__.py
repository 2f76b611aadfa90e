# SPDX-License-Identifier: Apache-2.0
"""Import paths that users of mindstudio-probe have in their scripts, and nothing else.

``from msprobe.core.config_check import ConfigChecker`` finds the class of `msprobe.config_check`.
The room holds no code of its own.
"""
