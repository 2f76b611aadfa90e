# SPDX-License-Identifier: Apache-2.0
"""Traits of a call by its stack frames: in an optimiser, a backward pass, MindSpore itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Final

import mindspore
from msprobe.capture.stacks import Traits, owner_in
from msprobe.mindspore.recompute_frames import RECOMPUTE_FILE

_MINDSPORE: Final = str(Path(mindspore.__file__).parent)
_OWN: Final = f"{Path(__file__).resolve().parent.parent}/"
_LAYERS: Final = tuple(f"{_MINDSPORE}/{part}/" for part in ("nn/layer", "nn/loss", "mint/nn"))
_OPTIMISERS: Final = (f"{_MINDSPORE}/nn/optim/", f"{_MINDSPORE}/mint/optim/")
# The executor's method that walks a graph backward; its file has moved between versions.
_BACKWARD: Final = "grad"
_EXECUTORS: Final = (f"{_MINDSPORE}/graph/api.py", f"{_MINDSPORE}/common/api.py")
_CLIPPING: Final = f"{_MINDSPORE}/ops/function/clip_func.py"


@cache
def is_of_user_or_layer(code: CodeType) -> bool:
    """Return whether this is code of the user or of a layer, rather than MindSpore's machinery."""
    file = code.co_filename
    return file.startswith(_LAYERS) or not file.startswith((f"{_MINDSPORE}/", _OWN))


def classify(codes: Sequence[CodeType]) -> Traits:
    """Return the traits of a stack whose innermost frame comes first."""
    files = [code.co_filename for code in codes]
    owner = owner_in(files, clipping=_CLIPPING, optimisers=_OPTIMISERS)
    return Traits(owner=owner, internal=_in_backward(codes), checkpointed=RECOMPUTE_FILE in files)


def _in_backward(codes: Sequence[CodeType]) -> bool:
    """Return whether a backward pass runs the call: inside a `bprop`, or a hook on a gradient.

    Recomputed calls run there as well, and are a part of the model.
    """
    for code in codes:
        if code.co_filename == RECOMPUTE_FILE:
            return False
        if code.co_name == _BACKWARD and code.co_filename in _EXECUTORS:
            return True
    return False
