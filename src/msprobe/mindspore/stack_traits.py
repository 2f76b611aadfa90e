# SPDX-License-Identifier: Apache-2.0
"""What the frames of a call say about it: inside an optimiser, inside MindSpore itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Final

import mindspore
from msprobe.capture.stacks import Traits
from msprobe.mindspore.recompute_frames import RECOMPUTE_FILE

_MINDSPORE: Final = str(Path(mindspore.__file__).parent)
_OWN: Final = f"{Path(__file__).resolve().parent.parent}/"
_LAYERS: Final = tuple(f"{_MINDSPORE}/{part}/" for part in ("nn/layer", "nn/loss", "mint/nn"))
_OPTIMISERS: Final = (f"{_MINDSPORE}/nn/optim/", f"{_MINDSPORE}/mint/optim/")
_CLIPPING: Final = f"{_MINDSPORE}/ops/function/clip_func.py"


@cache
def is_of_user_or_layer(code: CodeType) -> bool:
    """Return whether this is code of the user or of a layer, rather than MindSpore's machinery."""
    file = code.co_filename
    return file.startswith(_LAYERS) or not file.startswith((f"{_MINDSPORE}/", _OWN))


def classify(codes: Sequence[CodeType]) -> Traits:
    """Return the traits of a stack whose innermost frame comes first."""
    files = [code.co_filename for code in codes]
    owner = None
    if _CLIPPING in files:
        owner = "clip_grad"
    elif any(file.startswith(_OPTIMISERS) for file in files):
        owner = "optimizer"
    return Traits(owner=owner, checkpointed=RECOMPUTE_FILE in files)
