# SPDX-License-Identifier: Apache-2.0
"""Build the optional C kernels; everything else stands in pyproject.toml.

`optional=True`: without a C compiler (or with one that lacks GCC's vector extensions) the
installation still succeeds and msprobe falls back to the framework's own reductions.
"""

from __future__ import annotations

import sys

from setuptools import Extension, setup

# No contraction of a*b+c: the sums have the same bits on every machine. Vectors cross no function
# call that is not inlined, so the warning about that ABI does not apply.
FLAGS = (
    []
    if sys.platform == "win32"
    else ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing", "-Wno-psabi"]
)

setup(
    ext_modules=[
        Extension(
            "msprobe.capture._native",
            sources=["src/msprobe/capture/_native.c"],
            depends=[
                "src/msprobe/capture/_native_api.h",
                "src/msprobe/capture/_native_kernels.h",
            ],
            extra_compile_args=FLAGS,
            optional=True,
        ),
        Extension(
            "msprobe.dump._lines",
            sources=["src/msprobe/dump/_lines.c"],
            extra_compile_args=FLAGS,
            optional=True,
        ),
        Extension(
            "msprobe.dump.formats._opcodes",
            sources=["src/msprobe/dump/formats/_opcodes.c"],
            extra_compile_args=FLAGS,
            optional=True,
        ),
        Extension(
            "msprobe.pytorch.values._tensors",
            sources=["src/msprobe/pytorch/values/_tensors.c"],
            depends=[
                "src/msprobe/capture/_native_api.h",
                "src/msprobe/pytorch/values/_tensors_calls.h",
                "src/msprobe/pytorch/values/_tensors_taps.h",
            ],
            extra_compile_args=FLAGS,
            optional=True,
        ),
        Extension(
            "msprobe.pytorch.values._cuda",
            sources=["src/msprobe/pytorch/values/_cuda.c"],
            extra_compile_args=FLAGS,
            libraries=[] if sys.platform == "win32" else ["dl"],
            optional=True,
        ),
        Extension(
            "msprobe.numerics._elementwise",
            sources=["src/msprobe/numerics/_elementwise.c"],
            depends=[
                "src/msprobe/numerics/_elementwise_blocks.h",
                "src/msprobe/numerics/_elementwise_kernels.h",
                "src/msprobe/numerics/_elementwise_state.h",
            ],
            extra_compile_args=FLAGS,
            optional=True,
        ),
    ]
)
