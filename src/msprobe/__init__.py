# SPDX-License-Identifier: Apache-2.0
"""msprobe: find where a training run first goes wrong, and whether it is a bug or rounding.

Capture with `msprobe.pytorch.PrecisionDebugger`; read what was captured with `open_dump`; compare
two captures with `compare_dumps`. Monitor with `msprobe.pytorch.TrainerMon`; read such a run with
`open_monitor`; compare gradients with `GradComparator`. `golden` registers the reference of an
operator of your own. Importing this package changes nothing and imports no framework.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the constant of `typing`, which the command line shall not wait for
if TYPE_CHECKING:
    from typing import Any

    from msprobe.compare.run import compare_dumps
    from msprobe.dump.reader import open_dump
    from msprobe.monitor.gradients.comparing import GradComparator
    from msprobe.monitor.reader import open_monitor
    from msprobe.replay.references import golden

__version__: str
__all__ = [
    "GradComparator",
    "__version__",
    "compare_dumps",
    "golden",
    "open_dump",
    "open_monitor",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562), so that the import itself stays cheap."""
    if name == "open_dump":
        from msprobe.dump.reader import open_dump

        value: Any = open_dump
    elif name == "open_monitor":
        from msprobe.monitor.reader import open_monitor

        value = open_monitor
    elif name == "GradComparator":
        from msprobe.monitor.gradients.comparing import GradComparator

        value = GradComparator
    elif name == "compare_dumps":
        from msprobe.compare.run import compare_dumps

        value = compare_dumps
    elif name == "golden":
        from msprobe.replay.references import golden

        value = golden
    elif name == "__version__":
        value = _installed_version()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("msprobe")
    except PackageNotFoundError:  # a source tree on the path, never installed
        return "0+unknown"


def __dir__() -> list[str]:
    """List the public names along with what is loaded."""
    return sorted({*globals(), *__all__})
