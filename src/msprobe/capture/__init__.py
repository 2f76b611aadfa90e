# SPDX-License-Identifier: Apache-2.0
"""What to keep of a run: select, name, number, summarise, remember. Knows no framework.

Entry point: `Session` in ``session.py``, the one mutable object of a run; an adapter (the
``Adapter`` protocol in ``adapter.py``) feeds `Recorder` with calls and `GradientBook` with
gradients. May import `msprobe.config` and `msprobe.dump`.
"""
