# SPDX-License-Identifier: Apache-2.0
"""Tensors that are no plain block of memory: read through, or told apart with a note."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe.capture.statistics import NATIVE
from msprobe.pytorch.values.readable import STORED_VALUES, readable
from msprobe.pytorch.values.statistics import DeviceBatch, make_summarise, summarise

KERNELS = [pytest.param(make_summarise(None), id="reductions")]
if NATIVE is not None:
    KERNELS.append(pytest.param(make_summarise(NATIVE), id="native"))


@pytest.fixture(params=KERNELS)
def any_summarise(request):
    return request.param


def four(found):
    return found.max, found.min, found.mean, found.norm


NOTHING = (None,) * 4


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("left_bytes", [0, 8])
@pytest.mark.parametrize("is_strided", [False, True])
def test_released_storage_is_not_read(any_summarise, offset, left_bytes, is_strided):
    base = torch.ones(64)
    x = base[offset:]
    if is_strided:
        x = x[::2]
    base.untyped_storage().resize_(left_bytes)
    found = any_summarise(x)
    assert (four(found), found.note) == (NOTHING, "released")
    base.untyped_storage().resize_(256)
    base.fill_(1)
    assert any_summarise(x).max == 1.0


def test_meta_and_fake_tensors_have_a_note(any_summarise):
    with FakeTensorMode():
        fake = torch.ones(3)
    for t, note in ((torch.ones(3, device="meta"), "meta"), (fake, "fake")):
        found = any_summarise(t)
        assert (four(found), found.note, found.ready) == (NOTHING, note, True)


def test_an_uninitialized_parameter_has_a_note(any_summarise):
    assert any_summarise(torch.nn.UninitializedParameter()).note == "uninitialized"


def test_functorch_wrappers_show_what_is_inside(any_summarise):
    seen = []

    def f(x):
        with torch._C.DisableTorchFunctionSubclass():
            seen.append(four(any_summarise(x)))
        return (x * 2).sum()

    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    torch.vmap(f)(x)
    torch.func.grad(f)(x)
    torch.vmap(torch.func.grad(f))(x)
    assert seen == [(4.0, 0.0, 1.75, 5.0)] * 3


def test_sparse_tensors_show_their_stored_values(any_summarise):
    x = torch.tensor([[0.0, 3.0], [4.0, 0.0]])
    layouts = [x.to_sparse(), x.to_sparse_csr(), x.to_sparse_csc(), x.to_sparse_bsr((1, 1))]
    for t in layouts:
        found = any_summarise(t)
        assert (four(found), found.note) == ((4.0, 3.0, 3.5, 5.0), STORED_VALUES)


pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:torch.quantize"),
    pytest.mark.filterwarnings("ignore:torch.ao"),
]


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_show_all_their_elements(any_summarise, layout):
    parts = [torch.tensor([3.0]), torch.tensor([4.0, 0.0])]
    found = any_summarise(torch.nested.nested_tensor(parts, layout=layout))
    assert (four(found), found.note) == ((4.0, 0.0, 7 / 3, 5.0), None)


def test_a_nested_tensor_whose_storage_is_not_its_elements_has_a_note(any_summarise):
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]).transpose(1, 2)
    found = any_summarise(nested)
    assert (four(found), found.note) == (NOTHING, "nested with gaps")


def test_opaque_layouts_have_a_note(any_summarise):
    if not torch.backends.mkldnn.is_available():
        pytest.skip("no mkldnn")
    found = any_summarise(torch.ones(3).to_mkldnn())
    assert (four(found), found.note) == (NOTHING, "layout _mkldnn")


def test_quantised_tensors_show_their_real_values(any_summarise):
    x = torch.tensor([-1.0, 0.5, 2.0, 0.25])
    q = torch.quantize_per_tensor(x, 0.25, 3, torch.qint8)
    assert four(any_summarise(q))[:3] == (2.0, -1.0, 0.4375)
    scales, zeros = torch.tensor([0.25, 0.5]), torch.tensor([0, 0])
    c = torch.quantize_per_channel(x.reshape(2, 2), scales, zeros, 0, torch.qint8)
    assert four(any_summarise(c))[:2] == (2.0, -1.0)


def test_types_that_torch_cannot_read_have_a_note(any_summarise):
    for dtype in (torch.bits8, torch.uint4):
        found = any_summarise(torch.empty(4, dtype=dtype))
        assert four(found) == NOTHING
        assert found.note.startswith("unreadable")


class Renamed(torch.Tensor):
    """A subclass that overrides nothing about its data."""


class Wrapper(torch.Tensor):
    """A subclass without data of its own, whose operators must not run for us."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (3,))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was called")


def test_subclasses(any_summarise):
    with torch._C.DisableTorchFunctionSubclass():
        assert four(any_summarise(torch.tensor([3.0, 4.0]).as_subclass(Renamed)))[3] == 5.0
        found = any_summarise(Wrapper())
        assert (four(found), found.note) == (NOTHING, "wrapper Wrapper")
        with torch.no_grad():
            assert any_summarise(torch.nn.Parameter(torch.ones(2))).mean == 1.0
            assert any_summarise(torch.nn.Buffer(torch.ones(2))).mean == 1.0


def test_a_dtensor_shows_this_ranks_shard(any_summarise):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        t = distribute_tensor(torch.tensor([3.0, 4.0]), mesh, [Shard(0)])
        with torch._C.DisableTorchFunctionSubclass():
            assert four(any_summarise(t)) == (4.0, 3.0, 3.5, 5.0)
    finally:
        torch.distributed.destroy_process_group()


def test_a_lazily_cloned_tensor_stays_uncopied():
    x = torch._lazy_clone(torch.ones(8))
    assert summarise(x).mean == 1.0
    if NATIVE is not None:
        assert torch._C._is_cow_tensor(x)


def test_reading_leaves_the_tensor_as_it_was(any_summarise):
    tensors = [
        torch.randn(5, 6),
        torch.randn(5, 6).t(),
        torch.randn(6).to(torch.float8_e4m3fn),
        torch.randn(3, 4, dtype=torch.complex64),
        torch.tensor([float("nan"), 1.0]),
        torch.arange(5).to(torch.uint64),
    ]
    for t in tensors:
        before = (t._version, t.stride(), t.data_ptr(), t.untyped_storage().nbytes())
        content = bytes(t.untyped_storage().tolist())
        any_summarise(t)
        assert before == (t._version, t.stride(), t.data_ptr(), t.untyped_storage().nbytes())
        assert bytes(t.untyped_storage().tolist()) == content


@pytest.mark.skipif(NATIVE is None, reason="the C extension is not built")
def test_the_kernels_run_no_operator_that_a_dispatch_mode_would_see():
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            raise AssertionError(f"{func} was called")

    tensors = [torch.randn(5, 6), torch.randn(5, 6).t()[1:], torch.arange(4), torch.randn(3).half()]
    with Watch():
        assert all(summarise(t).ready and summarise(t).max is not None for t in tensors)


def test_a_batch_fills_many_summaries_at_once():
    with torch.no_grad():
        batch = DeviceBatch()
        tensors = [torch.full((i % 5 + 1,), float(i)) for i in range(2500)]
        mixed = [torch.arange(6), torch.tensor([True, False]), torch.tensor([float("nan")])]
        summaries = [batch.add(t) for t in (*tensors, *mixed)]
        assert len(batch) == 2503
        assert not any(s.ready for s in summaries)
        batch.collect()
        assert len(batch) == 0
    assert all(s.ready for s in summaries)
    assert [s.max for s in summaries[:2500]] == [float(i) for i in range(2500)]
    assert [s.mean for s in summaries[2500:2502]] == [2.5, None]
    assert summaries[-1].nonfinite.nan_count == 1
    batch.collect()  # nothing left to do


def test_a_copy_started_on_one_thread_is_finished_on_another():
    with torch.no_grad():
        batch = DeviceBatch()
        x = torch.tensor([3.0, 4.0])
        first = batch.add(x)
        batch.start_copy()
        x.zero_()
        thread = threading.Thread(target=batch.collect)
        thread.start()
        thread.join()
    assert four(first) == (4.0, 3.0, 3.5, 5.0)


def test_a_batch_keeps_no_tensor_alive():
    batch = DeviceBatch()
    x = torch.ones(3)
    gone = weakref.ref(x)
    batch.add(x)
    del x
    assert gone() is None


def test_without_counting_a_nonfinite_tensor_still_says_so():
    batch = DeviceBatch(count_nonfinite=False)
    bad, good = batch.add(torch.tensor([1.0, float("inf")])), batch.add(torch.ones(2))
    batch.collect()
    assert (bad.max, bad.nonfinite, bad.note) == (float("inf"), None, "non-finite, not counted")
    assert (good.max, good.note) == (1.0, None)


def test_readable_returns_the_tensor_itself_when_nothing_is_in_the_way():
    x = torch.ones(3)
    assert readable(x) is x
