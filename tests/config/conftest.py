# SPDX-License-Identifier: Apache-2.0
"""Configuration files for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msprobe.config import Config, load_config


@pytest.fixture
def config_file(tmp_path: Path) -> Callable[[Any], Path]:
    """Return a function that writes bytes, text or JSON data to a config.json."""

    def write(content: Any, name: str = "config.json") -> Path:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            text = content if isinstance(content, str) else json.dumps(content)
            path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def load(config_file: Callable[[Any], Path], tmp_path: Path) -> Callable[..., Config]:
    """Return a function that loads given content, with an output folder unless it has one."""

    def load_content(content: Any, **arguments: Any) -> Config:
        arguments.setdefault("dump_path", tmp_path / "dump")
        return load_config(config_file(content), **arguments)

    return load_content
