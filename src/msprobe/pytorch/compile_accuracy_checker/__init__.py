# SPDX-License-Identifier: Apache-2.0
"""Compiled modules held against eager ones. Enter at ``precision_checker.py``, the documented path.

``module_run.py`` runs one module from recorded inputs, ``graphs.py`` looks into what was compiled.
"""
