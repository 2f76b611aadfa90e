# SPDX-License-Identifier: Apache-2.0
"""`RUNNER`: recorded calls of MindSpore, run in PyTorch where both frameworks share the function.

MindSpore's `mint` functions and tensor methods have PyTorch's names and arguments, so PyTorch in
float64 is their reference, as in the documented check. MindSpore's own results come from the
recording, or from `mindspore/replay/` where MindSpore is installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.dump.records import JsonTree
from msprobe.operators.operator import Family
from msprobe.pytorch.replay.runner import TorchRunner
from msprobe.replay import references
from msprobe.replay.recorded_calls import BackwardPass, RecordedCall
from msprobe.replay.runner import (
    REFERENCE,
    CannotReplayError,
    PreparedCall,
    Reason,
    Replay,
    Setting,
)
from msprobe.replay.tensors import CallTensors

# Prefixes of functions that PyTorch has under the same names, and its prefix.
_PREFIXES: Final = {"Mint": "Torch", "MintFunctional": "Functional", "Tensor": "Tensor"}
# Names of arguments that differ; those of tensor methods.
_ARGUMENTS: Final = {"axis": "dim", "keep_dims": "keepdim", "keepdims": "keepdim"}
_TENSORS: Final = ("mindspore.Tensor", "mindspore.Parameter")


class SharedFunctionRunner:
    """Runs those calls of MindSpore that PyTorch has under the same name."""

    reruns = False

    def __init__(self) -> None:
        self._pytorch = TorchRunner()

    def device(self, word: str, *, jit_compile: bool = False) -> str:
        """Return the device that a word names; see `TorchRunner.device`.

        Raises:
            UsageError: there is no such device.
        """
        return self._pytorch.device(word, jit_compile=jit_compile)

    def float32_units(self, device: str) -> Mapping[Family, float]:
        """Return the unit roundoff of float32 on a device, of families where it is coarser."""
        return {}

    def share_cores(self, processes: int) -> None:
        """Use one part of the cores of this machine."""
        self._pytorch.share_cores(processes)

    def prepare(self, call: RecordedCall, tensors: CallTensors) -> PreparedCall:
        """Find PyTorch's function and rebuild the arguments.

        Raises:
            CannotReplayError: PyTorch has no such function, or an argument cannot be made again.
            DumpFormatError: a tensor file is damaged.
        """
        return _Recorded(self._pytorch.prepare(in_pytorch(call), tensors))


class _Recorded:
    """A call of which only the reference can be made."""

    def __init__(self, inner: PreparedCall) -> None:
        self._inner = inner
        self.args: Sequence[Any] = inner.args
        self.kwargs: Mapping[str, Any] = inner.kwargs
        self.draws_again = inner.draws_again

    def run(self, setting: Setting = REFERENCE, *, backward: bool = True) -> Replay:
        """Run the call in PyTorch.

        Raises:
            CannotReplayError: it fails, or MindSpore's own result is asked for.
        """
        if setting.judged:
            detail = "results that were not recorded need MindSpore, which is not installed"
            raise CannotReplayError(Reason.MISSING, detail)
        return self._inner.run(setting, backward=backward)

    def squares(self) -> Replay | None:
        """Return the sums of squares that PyTorch computes."""
        return self._inner.squares()


def in_pytorch(call: RecordedCall) -> RecordedCall:
    """Return a call of MindSpore as one of PyTorch.

    Raises:
        CannotReplayError: PyTorch has no function of that name.
    """
    prefix = _PREFIXES.get(call.prefix)
    if references.find((call.function, call.api)) is not None:
        prefix = call.prefix
    if prefix is None:
        raise CannotReplayError(Reason.UNKNOWN, f"{call.function} has no namesake in PyTorch")
    return replace(
        call,
        framework="pytorch",
        prefix=prefix,
        args=_translated(call.args),
        kwargs={_ARGUMENTS.get(key, key): _translated(tree) for key, tree in call.kwargs.items()},
        outputs=_translated(call.outputs),
        passes=tuple(_translated_pass(one) for one in call.passes),
    )


def _translated_pass(one: BackwardPass) -> BackwardPass:
    return replace(
        one,
        incoming=_translated(one.incoming),
        outgoing=_translated(one.outgoing),
        outgoing_kwargs={key: _translated(tree) for key, tree in one.outgoing_kwargs.items()},
    )


def _translated(tree: JsonTree) -> Any:
    """Return a part of a record with PyTorch's names of types."""
    if isinstance(tree, list):
        return [_translated(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind = tree.get("type")
    if kind in _TENSORS:
        dtype = f"torch.{normal_dtype(str(tree.get('dtype', '')))}"
        return {**tree, "type": "torch.Tensor", "dtype": dtype}
    if kind == "mindspore.dtype":
        return {"type": "torch.dtype", "value": f"torch.{normal_dtype(str(tree['value']))}"}
    if isinstance(kind, str):
        return tree
    return {key: _translated(item) for key, item in tree.items()}


RUNNER: Final = SharedFunctionRunner()
