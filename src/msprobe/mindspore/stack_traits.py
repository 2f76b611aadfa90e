# SPDX-License-Identifier: Apache-2.0
"""What the frames of a call say about it: inside an optimiser, inside MindSpore itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import Final

import mindspore
from msprobe.capture.stacks import Traits

_MINDSPORE: Final = str(Path(mindspore.__file__).parent)
_OPTIMISERS: Final = (f"{_MINDSPORE}/nn/optim/", f"{_MINDSPORE}/mint/optim/")
_CLIPPING: Final = f"{_MINDSPORE}/ops/function/clip_func.py"


def classify(codes: Sequence[CodeType]) -> Traits:
    """Return the traits of a stack whose innermost frame comes first."""
    files = [code.co_filename for code in codes]
    owner = None
    if _CLIPPING in files:
        owner = "clip_grad"
    elif any(file.startswith(_OPTIMISERS) for file in files):
        owner = "optimizer"
    return Traits(owner=owner)
