# SPDX-License-Identifier: Apache-2.0
"""Whatever a program does to its memory, a record never holds the statistics of an older value."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from builders.recordings import recording
from msprobe.capture.projections import project

pytestmark = pytest.mark.torch

_LIBRARY = torch.library.Library("msprobe_memo_test", "DEF")
_LIBRARY.define("fill_declared(Tensor(a!) x, float value) -> ()")
_LIBRARY.define("fill_in_secret(Tensor x, float value) -> ()")


def _write_in_secret(x: Tensor, value: float) -> None:
    x.numpy()[...] = value


_LIBRARY.impl("fill_declared", _write_in_secret, "CPU")
_LIBRARY.impl("fill_in_secret", _write_in_secret, "CPU")


class Workshop:
    """A tensor of 24 elements, things derived from it, and a probe that makes records of them."""

    def __init__(self) -> None:
        self.value = torch.ones(24) * 0.5
        self.views: list[Tensor] = []
        self.outside: Any = None
        self.count = 0
        self.expected: list[list[float]] = []

    def next(self) -> float:
        """A number that was not used before."""
        self.count += 1
        return 1.0 + self.count / 8

    def probe(self) -> None:
        """Let a record be made of everything, twice, and note what it must hold."""
        for tensor in (self.value, *self.views[-2:], self.value.view(4, 6), self.value[3:9]):
            torch.abs(tensor)
            exact = tensor.detach().double()
            self.expected.append(
                [float(exact.max()), float(exact.min()), float(exact.mean()), float(exact.norm())]
            )


def _storage_bytes(w: Workshop) -> None:
    number = torch.tensor([w.next()]).view(torch.uint8).tolist()
    storage = w.value.untyped_storage()
    for index, byte in enumerate(number):
        storage[index] = byte


def _keep_pointer(w: Workshop) -> None:
    w.outside = (ctypes.c_float * 24).from_address(w.value.data_ptr())


def _keep_array(w: Workshop) -> None:
    w.outside = w.value.numpy()


def _write_outside(w: Workshop) -> None:
    if w.outside is not None and w.value.numel():
        w.outside[5] = w.next()


def _batch_norm(w: Workshop) -> None:
    F.batch_norm(torch.rand(4, 24) * w.next(), w.value, torch.ones(24), training=True)


def _fused_optimiser(w: Workshop) -> None:
    parameter = w.value.requires_grad_()
    parameter.grad = torch.full((24,), w.next())
    torch.optim.SGD([parameter], lr=0.3, fused=True).step()
    w.value = parameter.detach()


def _adam_step(w: Workshop) -> None:
    steps = [torch.ones(())]
    moments = [[torch.zeros(24)] for _ in range(2)]
    torch._fused_adam_(
        [w.value], [torch.full((24,), w.next())], *moments, [], steps,
        lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip


def _renormalise(w: Workshop) -> None:
    F.embedding(torch.tensor([0, 2]), w.value.view(4, 6), max_norm=1 / w.next())


def _fresh(w: Workshop) -> None:
    del w.value
    w.views.clear()
    w.outside = None
    w.value = torch.full((24,), w.next())  # the allocator likes to give the same address


def _resize(w: Workshop) -> None:
    w.outside = None
    w.views.clear()
    w.value.resize_(48)
    w.value.resize_(24)
    w.value.data[7] = w.next()


def _swap(w: Workshop) -> None:
    w.views.clear()  # torch refuses to swap while somebody else refers to the tensor
    w.outside = None
    torch.utils.swap_tensors(w.value, torch.full((24,), w.next()))


EDITS: dict[str, Callable[[Workshop], Any]] = {
    "add_": lambda w: w.value.add_(w.next()),
    "setitem": lambda w: w.value.__setitem__(slice(2, 4), w.next()),
    "edit a view": lambda w: (w.views[-1] if w.views else w.value).mul_(w.next()),
    "make a view": lambda w: w.views.append(w.value.view(2, 12).t()),
    "make a narrow view": lambda w: w.views.append(w.value[4:8]),
    "make an alias by detach": lambda w: w.views.append(w.value.detach()),
    "write through detach": lambda w: w.value.detach().mul_(w.next()),
    "write through .data": lambda w: w.value.data.mul_(w.next()),
    "assign .data": lambda w: setattr(w.value, "data", torch.full((24,), w.next())),
    "keep a numpy array": _keep_array,
    "keep a pointer": _keep_pointer,
    "write from outside": _write_outside,
    "asarray": lambda w: np.asarray(w.value).__setitem__(3, w.next()),
    "dlpack": lambda w: torch.from_dlpack(w.value).fill_(w.next()),
    "storage bytes": _storage_bytes,
    "set_": lambda w: w.views.append(torch.empty(0).set_(w.value)),
    "set_ to other": lambda w: w.value.set_(torch.full((24,), w.next())),
    "write set_ alias": lambda w: torch.empty(0).set_(w.value).fill_(w.next()),
    "declared operator": lambda w: torch.ops.msprobe_memo_test.fill_declared(w.value, w.next()),
    "secret operator": lambda w: torch.ops.msprobe_memo_test.fill_in_secret(w.value, w.next()),
    "batch norm": _batch_norm,
    "fused optimiser": _fused_optimiser,
    "fused adam": _adam_step,
    "embedding max_norm": _renormalise,
    "foreach": lambda w: torch._foreach_mul_([w.value], w.next()),
    "out=": lambda w: torch.add(torch.zeros(24), w.next(), out=w.value),
    "out= a view": lambda w: torch.mul(torch.ones(4), w.next(), out=w.value[4:8]),
    "inplace=True": lambda w: F.threshold(w.value, 1e9, w.next(), inplace=True),
    "copy_": lambda w: w.value.copy_(torch.full((24,), w.next())),
    "uniform_": lambda w: w.value.uniform_(0, w.next()),
    "nn.init": lambda w: nn.init.constant_(w.value, w.next()),
    "swap for new memory": _fresh,
    "resize_": _resize,
    "share_memory_": lambda w: w.value.share_memory_(),
    "negate a lazy view": lambda w: w.views.append(torch._neg_view(w.value)),
    "bit view": lambda w: w.value.view(torch.int32).__setitem__(1, 0x3F800000 + w.count),
    "as_strided": lambda w: w.value.as_strided((2,), (3,), 1).fill_(w.next()),
    "real of complex": lambda w: torch.view_as_complex(w.value.view(12, 2)).mul_(w.next()),
    "no_grad iadd": lambda w: w.value.__iadd__(w.next()),
    "index_put_": lambda w: w.value.index_put_((torch.tensor([1]),), torch.tensor(w.next())),
    "swap_tensors": _swap,
}


def wrong_records(edits: list[str]) -> list[str]:
    """Run the edits under capture; return what its records say wrongly."""
    with tempfile.TemporaryDirectory() as folder, recording(Path(folder), "L1") as run:
        shop = Workshop()
        with run.step_of():
            shop.value = torch.ones(24) * 0.5  # born while capturing
            shop.probe()
            for name in edits:
                EDITS[name](shop)
                shop.probe()
        assert run.account()["errors"] == {}
        found = [
            [record["input_args"][0][key] for key in ("Max", "Min", "Mean", "Norm")]
            for name, record in run.records().items()
            if name.startswith("Torch.abs.")
        ]
    assert len(found) == len(shop.expected)
    return [
        f"{index}: {values} instead of {exact}"
        for index, (values, exact) in enumerate(zip(found, shop.expected, strict=True))
        if not np.allclose(values, exact, rtol=1e-6, atol=1e-9)
    ]


@pytest.mark.parametrize("edit", EDITS)
def test_one_kind_of_edit_is_seen_however_often(edit: str) -> None:
    assert wrong_records([edit, edit, edit]) == []


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(st.lists(st.sampled_from(sorted(EDITS)), min_size=2, max_size=10))
def test_no_sequence_of_edits_gives_stale_statistics(edits: list[str]) -> None:
    assert wrong_records(edits) == []


def test_an_unchanged_value_has_one_id_and_a_changed_one_another(tmp_path: Path) -> None:
    with recording(tmp_path, "L1") as run:
        with run.step_of():
            x = torch.ones(4) * 3
            torch.abs(x)
            torch.abs(x)
            x.add_(1)
            torch.abs(x)
        records = run.records()
    seen = [records[f"Torch.abs.{i}.forward"]["input_args"][0]["value_id"] for i in range(3)]
    assert seen[0] == seen[1] != seen[2]
    assert records["Tensor.add_.0.forward"]["input_args"][0]["value_id"] == seen[0]
    assert records["Tensor.add_.0.forward"]["output"][0]["value_id"] == seen[2]


def test_reused_addresses_are_new_values(tmp_path: Path) -> None:
    with recording(tmp_path, "L1") as run:
        with run.step_of():
            for number in range(50):
                torch.abs(torch.full((64,), float(number)))
        records = run.records()
    maxima = [records[f"Torch.abs.{i}.forward"]["input_args"][0]["Max"] for i in range(50)]
    assert maxima == [float(number) for number in range(50)]


def test_parameters_buffers_and_loader_data_are_never_remembered(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight * self.scale

    net, batch = Net(), torch.ones(4)
    with recording(tmp_path, "L1") as run:
        with run.step_of(net):
            net(batch)
            for tensor in (net.weight, net.scale, batch):
                ctypes.c_float.from_address(_address(tensor)).value = 7.0
            net(batch)
        records = run.records()
    assert records["Tensor.__mul__.0.forward"]["input_args"][1]["Max"] == 1.0
    assert records["Tensor.__mul__.2.forward"]["input_args"][0]["Max"] == 7.0
    assert records["Tensor.__mul__.2.forward"]["input_args"][1]["Max"] == 7.0
    assert records["Tensor.__mul__.3.forward"]["input_args"][1]["Max"] == 7.0


def _address(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunction():  # as a C extension reads it: nobody notices
        return tensor.data_ptr()


def test_equal_files_are_linked_and_changed_values_are_not(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "tensor") as run:
        with run.step_of():
            x = torch.ones(4) * 3
            torch.abs(x)
            torch.abs(x)
            x.add_(1)
            torch.abs(x)
        files = run.place() / "dump_tensor_data"
        inputs = [files / f"Torch.abs.{i}.forward.input.0.pt" for i in range(3)]
        assert inputs[0].samefile(inputs[1])
        assert not inputs[0].samefile(inputs[2])
        assert [torch.load(path)[0].item() for path in inputs] == [3.0, 3.0, 4.0]


def test_dense_views_share_statistics_but_not_checksums(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", section={"summary_mode": "md5"}) as run:
        with run.step_of():
            x = torch.arange(6.0).view(2, 3) * 1.5
            torch.abs(x)
            torch.abs(x.t())
        records = run.records()
    plain, turned = (records[f"Torch.abs.{i}.forward"]["input_args"][0] for i in range(2))
    assert plain["Norm"] == turned["Norm"]
    assert plain["md5"] != turned["md5"]


def test_views_of_the_same_elements_have_their_numbers_and_their_own_projections(
    tmp_path: Path,
) -> None:
    with recording(tmp_path, "L1") as run:
        with run.step_of():
            whole = torch.arange(2 * 5 * 24.0).view(2, 5, 24) * 1.5
            part = whole[..., 8:16]
            views = [
                part.reshape(2, 5, 2, 4),
                part.view(2, 5, 2, 4).transpose(1, 2),
                part[:, :, None],
                part[:, :4],
                part.transpose(0, 1).expand(3, 5, 2, 8),
                torch.as_strided(whole, (2, 5, 8), (120, 24, 2), 8),
            ]
            for view in (part, *views, part.transpose(1, 2), part):
                torch.abs(view)
            elsewhere = [view.clone(memory_format=torch.contiguous_format) for view in views]
            for copy in elsewhere:
                torch.abs(copy)
        records = run.records()
    inputs = [records[f"Torch.abs.{i}.forward"]["input_args"][0] for i in range(15)]
    for shown, tensor in zip(inputs[1:7], elsewhere, strict=True):
        exact = tensor.double()
        assert (shown["Max"], shown["Min"]) == (exact.max(), exact.min())
        assert shown["Mean"] == pytest.approx(float(exact.mean()), rel=1e-14)
        assert shown["Norm"] == pytest.approx(float(exact.norm()), rel=1e-14)
    for shown, view in zip(inputs[1:7], views, strict=True):
        once = view[0] if view.stride(0) == 0 else view
        in_memory = once.permute(sorted(range(once.dim()), key=lambda dim: -once.stride(dim)))
        assert shown["projections"] == pytest.approx(project(in_memory.numpy()), rel=1e-12)
    assert inputs[0] == inputs[8]
