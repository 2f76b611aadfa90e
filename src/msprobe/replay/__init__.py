# SPDX-License-Identifier: Apache-2.0
"""Recorded calls made runnable again.

A `RecordedCall` (``recorded_calls.py``) holds the arguments of a call as its record has them;
`TensorSource` (``tensors.py``) hands out their elements, read from the dump or made from
statistics. A `Runner` of a framework's adapter runs the call, in any precision, and ``workers.py``
runs many in processes that may end. Enter at ``runner.py``.
"""
