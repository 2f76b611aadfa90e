# SPDX-License-Identifier: Apache-2.0
"""Statistics of a whole training run: rows, the store that keeps them, their reader and exports.

`rows.py` says what a row is, `settings.py` reads the monitor's configuration. The collector of a
framework hands blocks of rows to `recorder.Recorder`, whose thread appends them to the run
(`store.py`) and tells listeners; `collecting/` is what collectors share. `reader.open_monitor`
reads a run, also while it grows.
May import `config/`, `dump/`, `capture/`, `operators/` and `report/`.
"""
