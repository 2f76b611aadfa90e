# SPDX-License-Identifier: Apache-2.0
"""Runs recorded calls of PyTorch again: ``runner.py``; it asks ``functions.py`` for the function, ``rebuilding.py`` for its arguments."""
