# SPDX-License-Identifier: Apache-2.0
"""Build the optional C kernels; everything else is in pyproject.toml.

`optional=True`: without a C compiler (or with one that lacks GCC's vector extensions) the
installation still succeeds and msprobe falls back to the framework's own reductions.

MSPROBE_ABI3=1 builds on Python's limited API, for a wheel that every Python from 3.12 on can use.
Other builds are for one Python, whose macros spare the hot path some calls.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from email.parser import HeaderParser
from pathlib import Path

from setuptools import Extension, setup

# The first Python whose limited API has vector calls.
IS_ABI3 = os.environ.get("MSPROBE_ABI3") == "1" and sys.version_info >= (3, 12)
# No contraction of a*b+c: the sums have the same bits on every machine. Vectors cross no function
# call that is not inlined, so the warning about that ABI does not apply.
FLAGS = (
    []
    if sys.platform == "win32"
    else ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing", "-Wno-psabi"]
)
# What loads functions by name, and threads, need libraries of their own in older C libraries.
LIBRARIES = [] if sys.platform == "win32" else ["dl", "pthread"]
SOURCES = (
    "capture/_native.c",
    "dump/_lines.c",
    "dump/formats/_opcodes.c",
    "numerics/_elementwise.c",
    "pytorch/values/_cuda.c",
    "pytorch/values/_tensors.c",
)

HERE = Path(__file__).resolve().parent
PUBLIC = "github.com|gitlab.com|codeberg.org|bitbucket.org|gitee.com|gitcode.com"


def project_urls() -> dict[str, str]:
    """Return the addresses of the metadata; none where no public address is known."""
    if (HERE / "PKG-INFO").exists():  # a source distribution keeps those that it was made with
        told = HeaderParser().parsestr((HERE / "PKG-INFO").read_text("utf-8"))
        return dict(each.split(", ", 1) for each in told.get_all("Project-URL", []))
    home = os.environ.get("MSPROBE_PROJECT_URL", "").rstrip("/")
    if not home and (HERE / ".git").exists():  # never the checkout of another project around it
        command = ["git", "-C", str(HERE), "config", "--get", "remote.origin.url"]
        origin = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        # https://HOST/PATH, with or without a name and a token, ssh://git@HOST/PATH, git@HOST:PATH
        address = rf"(?:(?:https?|ssh)://)?(?:[^@/]*@)?({PUBLIC})[:/](.+?)(?:\.git)?/?"
        home = (found := re.fullmatch(address, origin)) and "https://{}/{}".format(*found.groups())
    if not home:
        return {}
    pages = {"Homepage": "", "Documentation": "/tree/HEAD/docs", "Source": "", "Issues": "/issues"}
    pages["Changelog"] = "/blob/HEAD/CHANGELOG.md"
    return {name: home + page for name, page in pages.items()}


setup(
    project_urls=project_urls(),
    ext_modules=[
        Extension(
            f"msprobe.{source.removesuffix('.c').replace('/', '.')}",
            sources=[f"src/msprobe/{source}"],
            depends=[
                "src/msprobe/capture/_limited_api.h",
                "src/msprobe/capture/_native_api.h",
                *map(str, (Path("src/msprobe") / source).parent.glob("*.h")),
            ],
            extra_compile_args=FLAGS,
            libraries=LIBRARIES,
            define_macros=[("Py_LIMITED_API", "0x030C0000")] if IS_ABI3 else [],
            py_limited_api=IS_ABI3,
            optional=True,
        )
        for source in SOURCES
    ],
    options={"bdist_wheel": {"py_limited_api": "cp312"}} if IS_ABI3 else {},
)
