# SPDX-License-Identifier: Apache-2.0
"""Hook of mkdocs: the page `tutorial.md` shows the cells of `tutorial.ipynb`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_PAGE = "tutorial.md"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the text of a page, with the cells of the notebook behind that of the tutorial."""
    if page.file.src_uri != _PAGE:
        return markdown
    notebook = json.loads(Path(page.file.abs_src_path).with_suffix(".ipynb").read_text("utf-8"))
    return markdown + "\n".join(map(_shown, notebook["cells"]))


def _shown(cell: dict[str, Any]) -> str:
    """Return a cell as markdown, with the text that it printed."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        # The page has a title of its own.
        return "\n".join(line for line in source.splitlines() if not line.startswith("# ")) + "\n"
    printed = "".join(
        "".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream"
    )
    shown = f"```python\n{source}\n```\n"
    return f"{shown}\n```text\n{printed.rstrip()}\n```\n" if printed.strip() else shown
