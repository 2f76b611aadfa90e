# SPDX-License-Identifier: Apache-2.0
"""The framework-neutral part of recording: selects, names, numbers and summarises calls.

Entry point: `Session` in ``session.py``, the one mutable object of a run; an adapter (the
``Adapter`` protocol in ``adapter.py``) tells `Calls` of calls and `BackwardPasses` of gradients;
these tell the sinks (``events.py``), of which `Recording` makes the records. May import
`config/`, `dump/` and `operators/`.
"""
