# SPDX-License-Identifier: Apache-2.0
"""Run calls again with a slight change, and see what becomes of their results.

``examination.py`` does it to one call, by the means of ``modes.py``, and measures the difference
(``changes.py``). ``runner.py`` does so to the calls of a training (task `free_benchmark`),
``backward.py`` to their gradients, ``fixing.py`` goes on with the better result, ``offline.py``
perturbs the calls of a dump. Enter at ``runner.py``.
"""
