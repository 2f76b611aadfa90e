# SPDX-License-Identifier: Apache-2.0
"""The locked versions in `requirements/` are those that pyproject.toml asks for, with checksums."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = {"torch", "torchvision"}  # chosen by TORCH of the Makefile


def wanted(extra: str) -> list[Requirement]:
    """Return the requirements of an extra, and of those that it names, for this interpreter."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [Requirement(text) for text in project["dependencies"]]
    waiting = [extra]
    while waiting:
        for text in project["optional-dependencies"][waiting.pop()]:
            requirement = Requirement(text)
            if requirement.name == project["name"]:
                waiting += requirement.extras
            elif requirement.marker is None or requirement.marker.evaluate():
                found.append(requirement)
    return [each for each in found if each.name not in FRAMEWORKS]


def locked(name: str) -> dict[str, tuple[str, int]]:
    """Return version and number of checksums of each package of a file, for this interpreter."""
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", " ")
    pins: dict[str, tuple[str, int]] = {}
    for line in text.splitlines():
        requirement = Requirement(line.split(" --hash")[0].strip())
        if requirement.marker is None or requirement.marker.evaluate():
            (version,) = (each.version for each in requirement.specifier)
            checksums = re.findall(r"--hash=sha256:[0-9a-f]{64}\b", line)
            pins[canonicalize_name(requirement.name)] = (version, len(checksums))
    return pins


@pytest.mark.parametrize(("extra", "file"), [("dev", "dev.txt"), ("test", "mindspore.txt")])
def test_each_requirement_is_locked_with_a_checksum(extra: str, file: str) -> None:
    pins = locked(file)
    assert all(checksums for _, checksums in pins.values())
    missing = [
        str(each)
        for each in wanted(extra)
        if not each.specifier.contains(pins.get(canonicalize_name(each.name), ("0",))[0])
    ]
    assert not missing, "make lock"


@pytest.mark.parametrize("file", ["dev.txt", "mindspore.txt"])
def test_a_lock_names_no_place_and_no_framework(file: str) -> None:
    assert "://" not in (ROOT / "requirements" / file).read_text()
    assert not FRAMEWORKS & set(locked(file))
