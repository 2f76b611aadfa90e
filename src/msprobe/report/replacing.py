# SPDX-License-Identifier: Apache-2.0
"""Files that appear under their names when they are complete."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name beside `path`, which becomes `path` if no exception is raised."""
    if path.exists():
        logger.warning("%s exists and is replaced", path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
