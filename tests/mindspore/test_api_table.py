# SPDX-License-Identifier: Apache-2.0
"""Which functions are recorded when nothing is configured: what computes, and only that."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets import random

import mindspore as ms
from mindspore import Tensor, mint, ops
from msprobe import open_dump
from msprobe.mindspore import PrecisionDebugger
from msprobe.mindspore.api_table import ApiTable

X = Tensor(random(4, 4))
INDEX = Tensor(np.array([[0], [1], [2], [3]], np.int64))

FUNCTIONAL: dict[str, tuple[Any, ...]] = {
    "abs": (X,),
    "add": (X, X),
    "argmax": (X,),
    "bmm": (X[None], X[None]),
    "broadcast_to": (X, (2, 4, 4)),
    "cast": (X, ms.float16),
    "cat": ((X, X),),
    "clamp": (X, 0, 1),
    "concat": ((X, X),),
    "cumsum": (X, 0),
    "div": (X, X),
    "dropout": (X,),
    "exp": (X,),
    "expand_dims": (X, 0),
    "gather_elements": (X, 1, INDEX),
    "gelu": (X,),
    "layer_norm": (X, (4,), Tensor(random(4)), Tensor(random(4))),
    "log_softmax": (X,),
    "masked_fill": (X, X > 0, 0.0),
    "matmul": (X, X),
    "mean": (X,),
    "mul": (X, X),
    "norm": (X,),
    "one_hot": (INDEX, 5),
    "ones_like": (X,),
    "pad": (X, (1, 1)),
    "relu": (X,),
    "reshape": (X, (2, 8)),
    "sigmoid": (X,),
    "softmax": (X,),
    "split": (X, 2),
    "sqrt": (X.abs(),),
    "stack": ((X, X),),
    "sub": (X, X),
    "sum": (X,),
    "tanh": (X,),
    "tile": (X, (2, 1)),
    "topk": (X, 2),
    "transpose": (X, (1, 0)),
    "where": (X > 0, X, X),
    "zeros": ((2, 2),),
}
MINT: dict[str, tuple[Any, ...]] = {
    "abs": (X,),
    "add": (X, X),
    "cat": ((X, X),),
    "div": (X, X),
    "exp": (X,),
    "ge": (X, X),
    "log": (X.abs(),),
    "matmul": (X, X),
    "mul": (X, X),
    "ones": ((2, 2),),
    "reshape": (X, (2, 8)),
    "sqrt": (X.abs(),),
    "sub": (X, X),
    "sum": (X,),
    "transpose": (X, 0, 1),
    "where": (X > 0, X, X),
    "zeros": ((2, 2),),
}
MINT_FUNCTIONAL: dict[str, tuple[Any, ...]] = {
    "linear": (X, X),
    "relu": (X,),
    "sigmoid": (X,),
    "silu": (X,),
    "softmax": (X, -1),
    "tanh": (X,),
}
METHODS: dict[str, tuple[Any, ...]] = {
    "__add__": (X,),
    "__getitem__": (0,),
    "__gt__": (X,),
    "__matmul__": (X,),
    "__mul__": (X,),
    "__neg__": (),
    "__pow__": (2,),
    "__radd__": (1.0,),
    "__sub__": (X,),
    "__truediv__": (2.0,),
    "abs": (),
    "argmax": (),
    "astype": (ms.float16,),
    "broadcast_to": ((2, 4, 4),),
    "clip": (0, 1),
    "exp": (),
    "masked_fill": (X > 0, 0.0),
    "matmul": (X,),
    "max": (),
    "mean": (),
    "min": (),
    "pow": (2,),
    "prod": (),
    "reshape": (2, 8),
    "split": (2,),
    "sqrt": (),
    "sum": (),
    "swapaxes": (0, 1),
    "tanh": (),
    "to": (ms.float16,),
    "transpose": (1, 0),
    "var": (),
    "view": (2, 8),
}
HOMES = [
    ("Functional", ops, FUNCTIONAL),
    ("Mint", mint, MINT),
    ("MintFunctional", mint.nn.functional, MINT_FUNCTIONAL),
    ("Tensor", X, METHODS),
]


@pytest.mark.parametrize(("prefix", "home", "calls"), HOMES, ids=[home[0] for home in HOMES])
def test_common_operations_are_recorded_under_the_name_they_were_called_by(
    prefix: str, home: Any, calls: dict[str, tuple[Any, ...]], tmp_path: Path
) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    debugger.start()
    refused = [name for name, given in calls.items() if not runs(getattr(home, name), given)]
    debugger.stop()
    debugger.step()
    found = list(open_dump(tmp_path).step(0).rank().records)
    expected = [f"{prefix}.{name}.0.forward" for name in calls if name not in refused]
    assert found == expected
    assert len(refused) <= 2  # operators that the CPU lacks


def runs(function: Callable[..., Any], given: tuple[Any, ...]) -> bool:
    try:
        function(*given)
    except RuntimeError:
        return False
    return True


JUNK = [
    "Functional.constexpr",
    "Functional.get_rank",
    "Functional.init_process_group",
    "Functional.grad",
    "Functional.kernel",
    "Functional.shape",
    "Functional.stop_gradient",
    "Functional.tensordump",
    "Functional.vmap",
    "Mint.is_grad_enabled",
    "MintDistributed.new_group",
    "Tensor.asnumpy",
    "Tensor.delete_",
    "Tensor.item",
    "Tensor.register_hook",
    "Tensor.__init__",
    "Tensor.__repr__",
]


def test_what_does_not_compute_is_not_recorded() -> None:
    names = {api.name for api in ApiTable().apis()}
    assert not names & set(JUNK)
    for api in ApiTable().apis():
        assert not inspect.isclass(getattr(api.owner, api.attribute)), api.name
        private = api.attribute.startswith("_") and not api.name.startswith("Tensor.__")
        assert not private, api.name


def test_each_name_appears_once() -> None:
    names = [api.name for api in ApiTable().apis()]
    assert len(names) == len(set(names))
