# SPDX-License-Identifier: Apache-2.0
"""Traits of a call by its stack frames: inside an optimiser, a checkpoint, torch itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import Final

import torch

from msprobe.capture.stacks import Traits, owner_in

_TORCH: Final = str(Path(torch.__file__).parent)
_CHECKPOINT: Final = f"{_TORCH}/utils/checkpoint.py"
# Detaching the inputs of a recomputation, keeping random states and making the first gradient of
# a backward pass are no part of the model.
_MACHINERY: Final = (_CHECKPOINT, f"{_TORCH}/random.py", f"{_TORCH}/autograd/__init__.py")
_OPTIMISERS: Final = f"{_TORCH}/optim/"
_CLIPPING: Final = f"{_TORCH}/nn/utils/clip_grad.py"
_OPERATORS: Final = f"{_TORCH}/_ops.py"  # the Python frame of every operator that is called
# Runs compiled code and its parts: seen in a backward pass.
_COMPILED_CODE: Final = f"{_TORCH}/_functorch/_aot_autograd/"
_DISTRIBUTED: Final = f"{_TORCH}/distributed/"
# Parts of torch.distributed that are mathematics of the model, not machinery.
_DISTRIBUTED_MODEL_CODE: Final = (f"{_TORCH}/distributed/nn/", f"{_TORCH}/distributed/pipelining/")


def classify(codes: Sequence[CodeType]) -> Traits:
    """Return the traits of a stack whose innermost frame comes first."""
    files = [code.co_filename for code in codes]
    return Traits(
        owner=owner_in(files, clipping=_CLIPPING, optimisers=_OPTIMISERS),
        internal=_is_internal(files),
        checkpointed=_CHECKPOINT in files,
    )


def _is_internal(files: Sequence[str]) -> bool:
    """Return whether the calling code itself is machinery of torch.

    FSDP2 alone makes about 70 metadata calls a step. The model's own forward, which DDP and FSDP
    call, is further in than their frames. Calls of compiled code are not recorded.
    """
    if any(file.startswith(_COMPILED_CODE) for file in files):
        return True
    caller = next((file for file in files if file != _OPERATORS), "")
    if caller in _MACHINERY:
        return True
    return caller.startswith(_DISTRIBUTED) and not caller.startswith(_DISTRIBUTED_MODEL_CODE)
