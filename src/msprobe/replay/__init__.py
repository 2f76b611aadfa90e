# SPDX-License-Identifier: Apache-2.0
"""Recorded calls made runnable again.

A `RecordedCall` (``recorded_calls.py``) holds the arguments of one call as its record has them; `TensorSource`
(``tensors.py``) hands out their elements, read from the dump or made from statistics. A `Runner` (``runner.py``)
of a framework's adapter runs the call, in any precision; ``workers.py`` runs many in processes that may die.
Enter at ``runner.py``.
"""
