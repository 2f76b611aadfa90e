# SPDX-License-Identifier: Apache-2.0
"""Make `report/page/vendor/uplot.js` and `uplot.css` of a release of uPlot.

    npm install uplot && python scripts/vendor_uplot.py node_modules/uplot

The built file of the release stays as it is, inside a module that exports it; the licence is kept
beside it and in each page that it becomes part of.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

VENDOR = Path(__file__).resolve().parent.parent / "src" / "msprobe" / "report" / "page" / "vendor"


def main() -> None:
    """Write the three files."""
    package = Path(sys.argv[1])
    version = json.loads((package / "package.json").read_text())["version"]
    built = (package / "dist" / "uPlot.iife.min.js").read_text().strip()
    licence = (package / "LICENSE").read_text().strip()
    head = f"/*! uPlot {version}, made by scripts/vendor_uplot.py\n\n{licence}\n*/\n"
    lines = ["// @ts-nocheck", "export const uPlot = (() => {", built, "return uPlot;", "})();", ""]
    (VENDOR / "uplot.js").write_text(head + "\n".join(lines))
    (VENDOR / "uplot.css").write_text((package / "dist" / "uPlot.min.css").read_text())
    shutil.copy(package / "LICENSE", VENDOR / "uplot.LICENSE")


if __name__ == "__main__":
    main()
