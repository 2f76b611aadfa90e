# SPDX-License-Identifier: Apache-2.0
"""Bring the layout library dagre from npm into the page: ``python scripts/vendor_dagre.py``.

Needs npm and its registry; only who changes the version below runs this. The result is part of the
repository and of the wheel, so that neither building nor using msprobe needs Node or a network.
"""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

VERSION: Final = "3.1.3"
INTEGRITY: Final = (
    "X4aUTwOReZvthaZWOVHqlJ52/ZdhZFEM4+Lh/uR4XooUSLE6p71bcy7MPGzYnNUcNh+nj+i/qJQpCMIdQnSmrg=="
)
TARGET: Final = Path(__file__).parents[1] / "src/msprobe/report/page/vendor/dagre.js"
_EXPORT: Final = re.compile(r"export\{([^}]*)\};")
_NAMES: Final = ("Graph", "layout")


def main() -> None:
    """Fetch the package, check it, and write the module."""
    with tempfile.TemporaryDirectory() as folder:
        pack = ("npm", "pack", "--silent", f"@dagrejs/dagre@{VERSION}")
        name = subprocess.run(pack, cwd=folder, check=True, capture_output=True, text=True).stdout
        archive = Path(folder) / name.strip()
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if digest != INTEGRITY:
            raise SystemExit(f"{archive.name}: its SHA-512 is {digest}, not {INTEGRITY}")
        with tarfile.open(archive) as files:
            code, licence = (
                files.extractfile(f"package/{part}").read().decode()
                for part in ("dist/dagre.esm.js", "LICENSE")
            )
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(module(code, licence), encoding="utf-8")


def module(code: str, licence: str) -> str:
    """Return the library as a module in the form that pages can take in, with its licence."""
    exported = dict(
        reversed(part.split(" as "))
        for part in _EXPORT.search(code)[1].split(",")
        if " as " in part
    )
    body = _EXPORT.sub("", code.partition("/*! For license")[0]).strip()
    names = ", ".join(f"{name}: {exported[name]}" for name in _NAMES)
    return (
        "// SPDX-License-Identifier: MIT\n// @ts-nocheck\n"
        f"/*! dagre {VERSION}, made by scripts/vendor_dagre.py\n\n{licence.strip()}\n*/\n"
        f"export const dagre = (() => {{\n{body}\nreturn {{ {names} }};\n}})();\n"
    )


if __name__ == "__main__":
    main()
