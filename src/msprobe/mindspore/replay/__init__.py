# SPDX-License-Identifier: Apache-2.0
"""Recorded calls of MindSpore, run again in MindSpore.

Entry: `runner.RUNNER`. Imports `replay/`, `dump/` and `operators/`, besides this room.
"""
