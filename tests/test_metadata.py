# SPDX-License-Identifier: Apache-2.0
"""Addresses in the metadata of a build: those of the checkout, or none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = "from setuptools.build_meta import prepare_metadata_for_build_wheel as p; print(p('.'))"
PROJECT = {
    "Homepage": "https://github.com/owner/repo",
    "Documentation": "https://github.com/owner/repo/tree/HEAD/docs",
    "Source": "https://github.com/owner/repo",
    "Issues": "https://github.com/owner/repo/issues",
    "Changelog": "https://github.com/owner/repo/blob/HEAD/CHANGELOG.md",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "src" / "msprobe").mkdir(parents=True)
    return tmp_path


def urls(tree: Path, **environment: str) -> dict[str, str]:
    """Build the metadata and return its addresses."""
    env = {k: v for k, v in os.environ.items() if k != "MSPROBE_PROJECT_URL"} | environment
    for old in tree.glob("*.dist-info"):
        shutil.rmtree(old)
    done = subprocess.run(
        [sys.executable, "-c", BUILD],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = (tree / done.stdout.splitlines()[-1] / "METADATA").read_text("utf-8")
    told = HeaderParser().parsestr(text).get_all("Project-URL", [])
    return dict(each.split(", ", 1) for each in told)


def test_no_address_is_invented(tree):
    assert urls(tree) == {}


def test_the_build_names_the_address(tree):
    assert urls(tree, MSPROBE_PROJECT_URL="https://github.com/owner/repo/") == PROJECT


@pytest.mark.parametrize(
    ("origin", "found"),
    [
        ("https://github.com/owner/repo.git", PROJECT),
        ("https://name:token@github.com/owner/repo", PROJECT),
        ("git@github.com:owner/repo.git", PROJECT),
        ("ssh://git@github.com/owner/repo.git", PROJECT),
        ("git@git.company.example:owner/repo.git", {}),
        ("/srv/repo.git", {}),
    ],
)
@pytest.mark.usefixtures("git_repositories")
def test_a_checkout_tells_its_host_if_it_is_public(tree, origin, found):
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    subprocess.run(["git", "remote", "add", "origin", origin], cwd=tree, check=True)
    assert urls(tree) == found


def test_a_source_distribution_keeps_its_addresses(tree):
    kept = "Metadata-Version: 2.4\nName: msprobe\nProject-URL: Homepage, https://a.example/b\n"
    (tree / "PKG-INFO").write_text(kept)
    assert urls(tree, MSPROBE_PROJECT_URL="https://github.com/other/one") == {
        "Homepage": "https://a.example/b"
    }
