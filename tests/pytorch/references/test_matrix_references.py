# SPDX-License-Identifier: Apache-2.0
"""References of matrix products, experts, updates and 8-bit numbers agree with plain PyTorch."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from reference_functions import close, normal, reference  # noqa: E402
from torch.nn import functional  # noqa: E402

from msprobe.replay.references import NoReferenceError  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(22)


def test_linear_and_its_gradients():
    x, weight, bias, g = normal(2, 3, 4), normal(5, 4), normal(5), normal(2, 3, 5)
    close(reference("NPU.npu_linear")(x, weight, bias), functional.linear(x, weight, bias))
    found = reference("npu_linear_backward")(g, x, weight)
    close(found[0], torch.einsum("abo,oi->abi", g, weight))
    close(found[1], torch.einsum("abo,abi->oi", g, x))


@pytest.mark.parametrize(
    "shapes",
    [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((2, 1, 3, 4), (6, 4, 5)), ((3, 4), (2, 4, 5))],
)
def test_gradients_of_products_with_any_number_of_axes(shapes):
    a, b = (normal(*shape).requires_grad_() for shape in shapes)
    product = torch.matmul(a, b)
    g = torch.randn_like(product)
    expected = torch.autograd.grad(product, (a, b), g)
    for target, one in zip(reference("matmul_backward")(g, a, b), expected, strict=True):
        close(target, one)
    assert reference("matmul_backward")(g, a, b, (False, True))[0] is None


@pytest.mark.parametrize("transpose_first", [True, False])
def test_confusion_transpose(transpose_first):
    x = normal(2, 3, 4).requires_grad_()
    perm, shape = ((2, 0, 1), (4, 6)) if transpose_first else ((1, 0), (6, 4))
    expected = x.movedim(2, 0).flatten(1) if transpose_first else x.view(6, 4).transpose(0, 1)
    close(reference("NPU.npu_confusion_transpose")(x, perm, shape, transpose_first), expected)
    g = torch.randn_like(expected)
    backward = reference("npu_confusion_transpose_backward")
    found = backward(g, perm, tuple(x.shape), transpose_first)
    close(found, torch.autograd.grad(expected, x, g)[0])


def test_sorting():
    x = torch.randint(0, 5, (3, 6)).double()
    close(reference("npu_sort_v2")(x, 0, True), x.sort(0, descending=True).values)


def group_rows(x, ends):
    return [x[start:end] for start, end in itertools.pairwise((0, *ends))]


def test_grouped_matmul_of_rows_in_all_forms():
    x, weight, ends = normal(7, 4), normal(3, 4, 5), (2, 2, 6)
    rows = group_rows(x, ends)
    expected = [rows[number] @ weight[number] for number in range(3)]
    matmul = reference("NPU.npu_grouped_matmul")
    for found in (
        matmul(rows, list(weight)),
        matmul([x], list(weight), group_list=list(ends)),
        matmul([x], [weight], group_list=torch.tensor(ends), group_type=0),
        matmul([x], [weight], group_list=torch.tensor((2, 0, 4)), group_list_type=1),
    ):
        for target, one in zip(found, expected, strict=True):
            close(target, one)
    (joint,) = matmul([x], [weight], group_list=list(ends), split_item=3)
    close(joint[:6], torch.cat(expected))
    assert joint.shape == (7, 5)
    bias = normal(3, 5)
    found = matmul(rows, list(weight), bias=list(bias), act_type=5)
    close(found[2], functional.silu(expected[2] + bias[2]))


def test_grouped_matmul_of_the_inner_axis():
    x, other, ends = normal(3, 6), normal(6, 4), (1, 4, 6)
    expected = torch.stack([x[:, a:b] @ other[a:b] for a, b in itertools.pairwise((0, *ends))])
    found = reference("npu_grouped_matmul")([x], [other], group_list=list(ends), group_type=2)
    close(found[0], expected)
    close(reference("Functional.grouped_mm")(x, other, torch.tensor(ends)), expected)


def test_grouped_matmul_of_quantised_numbers():
    x = torch.randint(-128, 128, (5, 64), dtype=torch.int8)
    weight = torch.randint(-128, 128, (2, 64, 3), dtype=torch.int8)
    scale, tokens = torch.rand(2, 3).double(), torch.rand(5).double()
    found = reference("npu_grouped_matmul")(
        [x], [weight], scale=[scale], per_token_scale=[tokens], group_list=[2, 5], split_item=2
    )[0]
    for number, rows in enumerate((slice(0, 2), slice(2, 5))):
        exact = (x[rows].long() @ weight[number].long()).double()
        close(found[rows], exact * scale[number] * tokens[rows, None])
    wide = normal(5, 64)
    found = reference("npu_grouped_matmul")(
        *([wide], [weight]),
        antiquant_scale=[scale],
        antiquant_offset=[torch.ones(2, 3).double()],
        group_list=[2, 5],
    )
    close(found[1], wide[2:] @ ((weight[1].double() + 1) * scale[1]))


def test_grouped_mm_of_torch():
    a, b, ends = normal(7, 4), normal(3, 4, 5), torch.tensor([2, 4, 7], dtype=torch.int32)
    grouped = reference("Functional.grouped_mm")
    close(
        grouped(a, b, ends), torch.cat([r @ b[n] for n, r in enumerate(group_rows(a, (2, 4, 7)))])
    )
    columns = normal(3, 6, 4)
    other = normal(4, 7)
    found = grouped(columns, other, ends)
    close(found[:, 2:4], columns[1] @ other[:, 2:4])
    batch = normal(2, 3, 4), normal(2, 4, 5)
    close(grouped(*batch), torch.bmm(*batch))


def test_gating_by_softmax_of_the_npu():
    x = normal(3, 5)
    values, experts, rows = reference("NPU.npu_moe_gating_top_k_softmax")(
        x, torch.tensor([False, True, False]), 2
    )
    top = torch.topk(x.softmax(-1), 2)
    close(values, top.values)
    assert experts[0].tolist() == top.indices[0].tolist()
    assert experts[1].tolist() == [5, 5]
    assert rows.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert {experts.dtype, rows.dtype} == {torch.int32}
    ties = reference("npu_moe_gating_top_k_softmax")(torch.zeros(1, 4), None, 3)
    assert ties[1].tolist() == [[0, 1, 2]]


def test_gating_by_groups_as_deepseek_does():
    x, bias = normal(4, 8), normal(8) * 0.1
    values, experts, shares = reference("npu_moe_gating_top_k")(
        x, 3, bias=bias, k_group=2, group_count=4, group_select_mode=1, norm_type=1,
        routed_scaling_factor=2.5, out_flag=True,
    )  # fmt: skip
    for row in range(4):
        share = x[row].sigmoid()
        choice = share + bias
        best = sorted(range(4), key=lambda group: -float(choice[2 * group : 2 * group + 2].sum()))
        allowed = [expert for group in best[:2] for expert in (2 * group, 2 * group + 1)]
        chosen = sorted(allowed, key=lambda expert: -float(choice[expert]))[:3]
        assert experts[row].tolist() == chosen
        close(values[row], share[chosen] / (share[chosen].sum() + 1e-20) * 2.5)
    close(shares, x.sigmoid())


@pytest.mark.parametrize("kept", [None, 9])
def test_tokens_are_sorted_by_expert_and_back(kept):
    tokens = normal(6, 4).requires_grad_()
    experts = torch.stack([torch.randperm(4)[:2] for _ in range(6)])
    shares = torch.rand(6, 2, dtype=torch.float64)
    sorted_tokens, places = reference("NPU.npu_moe_token_permute")(tokens, experts, kept)
    choices = sorted(range(12), key=lambda choice: int(experts.view(-1)[choice]))
    assert torch.equal(sorted_tokens, tokens[[choice // 2 for choice in choices[:kept]]])
    assert [choices[place] for place in places.tolist()] == list(range(12))
    restored = reference("npu_moe_token_unpermute")(sorted_tokens, places, shares)
    alive = torch.zeros(12, dtype=torch.float64)
    alive[choices[:kept]] = 1.0
    expected = tokens * (shares * alive.view(6, 2)).sum(1, keepdim=True)
    close(restored, expected)
    close(torch.autograd.grad(restored.sum(), tokens)[0], expected.detach() / tokens.detach())


@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
def test_fused_adam_against_the_optimizer_of_torch(name, amsgrad, maximize):
    plain = torch.optim.AdamW if name == "_fused_adamw_" else torch.optim.Adam
    options = {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-6, "amsgrad": amsgrad}
    params = [normal(3, 4), normal(5)]
    expected = [torch.nn.Parameter(one.clone()) for one in params]
    optimizer = plain(expected, foreach=False, fused=False, maximize=maximize, **options)
    states = [[torch.zeros_like(one) for one in params] for _ in range(3)]
    scale = torch.tensor(8.0)
    for step in (1, 2, 3):
        grads = [torch.randn_like(one) for one in params]
        for param, grad in zip(expected, grads, strict=True):
            param.grad = grad.clone()
        optimizer.step()
        reference(f"Torch.{name}")(
            params, [grad * 8 for grad in grads], states[0], states[1],
            states[2] if amsgrad else [], [torch.tensor(float(step))] * 2,
            beta1=0.9, beta2=0.999, maximize=maximize, grad_scale=scale,
            found_inf=torch.tensor(0.0), **options,
        )  # fmt: skip
    for number, (target, one) in enumerate(zip(params, expected, strict=True)):
        close(target, one.detach())
        close(states[1][number], optimizer.state[one]["exp_avg_sq"])


def test_a_step_with_infinite_gradients_changes_nothing():
    param = normal(3)
    before = param.clone()
    states = [[torch.zeros(3)] for _ in range(2)]
    reference("_fused_adam_")(
        [param], [normal(3)], *states, [], [torch.tensor(1.0)], lr=0.1, beta1=0.9, beta2=0.99,
        weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False, found_inf=torch.tensor(1.0),
    )  # fmt: skip
    assert torch.equal(param, before)


@pytest.mark.parametrize("nesterov", [False, True])
def test_fused_sgd_against_the_optimizer_of_torch(nesterov):
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": nesterov}
    param = normal(4)
    expected = torch.nn.Parameter(param.clone())
    optimizer = torch.optim.SGD([expected], foreach=False, **options)
    buffer = torch.zeros(4, dtype=torch.float64)
    for step in range(3):
        grad = normal(4)
        expected.grad = grad.clone()
        optimizer.step()
        reference("_fused_sgd_")(
            [param], [grad], [buffer], dampening=0.0, maximize=False, is_first_step=step == 0,
            **options,
        )  # fmt: skip
    close(param, expected.detach())


def test_adam_of_the_npu_takes_the_powers_of_this_step():
    var, grad = normal(5), normal(5)
    expected = torch.nn.Parameter(var.clone())
    expected.grad = grad
    torch.optim.Adam([expected], lr=0.01, eps=0.0, foreach=False).step()
    states = (var, torch.zeros(5).double(), torch.zeros(5).double())
    found = reference("NPU.npu_apply_adam")(0.9, 0.999, 0.01, 0.9, 0.999, 0.0, grad, out=states)
    close(found[0], expected.detach())
    assert found[0] is var


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
def test_adamw_of_the_npu(amsgrad, maximize):
    expected = torch.nn.Parameter(normal(5))
    optimizer = torch.optim.AdamW(
        [expected], lr=0.01, weight_decay=0.1, amsgrad=amsgrad, maximize=maximize, foreach=False
    )
    states = (expected.detach().clone(), torch.zeros(5).double(), torch.zeros(5).double())
    largest = torch.zeros(5).double() if amsgrad else None
    for step in range(3):
        expected.grad = normal(5) / (step + 1)
        optimizer.step()
        reference("npu_apply_adam_w")(
            0.9**step, 0.999**step, 0.01, 0.1, 0.9, 0.999, 1e-8, expected.grad, largest, amsgrad,
            maximize, out=states,
        )  # fmt: skip
    close(states[0], expected.detach())


def test_scaled_mm_of_8_bit_floats():
    a = torch.randn(32, 64).to(torch.float8_e4m3fn)
    b = torch.randn(16, 64).to(torch.float8_e4m3fn).t()
    scale_a, scale_b = torch.tensor(0.5), torch.tensor(2.5)
    found = reference("Torch._scaled_mm")(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)
    kernel = torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.float32)
    close(found, kernel.double(), 1e-4)
    rows, columns = torch.rand(32, 1), torch.rand(1, 16)
    plain = (a.double() @ b.double()) * rows.double() * columns.double()
    bias = normal(16)
    close(reference("_scaled_mm")(a, b, rows, columns, bias), plain + bias)
    blocks = torch.rand(32, 2)
    found = reference("_scaled_mm")(a, b, blocks, scale_b)
    close(found, (a.double() * blocks.double().repeat_interleave(32, 1)) @ b.double() * 2.5)


def test_products_of_8_bit_integers_are_exact():
    a = torch.randint(-128, 128, (17, 4096), dtype=torch.int8)
    b = torch.randint(-128, 128, (4096, 8), dtype=torch.int8)
    assert torch.equal(reference("Torch._int_mm")(a, b), torch._int_mm(a, b))
    scale, tokens = torch.rand(8).double(), torch.rand(17).double()
    bias = torch.randint(-999, 999, (8,), dtype=torch.int32)
    found = reference("NPU.npu_quant_matmul")(
        a, b, scale, pertoken_scale=tokens, bias=bias, output_dtype=torch.bfloat16
    )
    close(found, (torch._int_mm(a, b) + bias).double() * scale * tokens[:, None])
    rounded = reference("npu_quant_matmul")(a, b, scale * 1e-4, offset=torch.tensor(3.0).double())
    assert rounded.dtype == torch.int8
    with pytest.raises(NoReferenceError):
        reference("npu_quant_matmul")(a, b, torch.ones(8, dtype=torch.int64))


def test_weights_of_8_bit_integers():
    x, scales = normal(4, 64), torch.rand(32).double()
    weight = torch.randint(-128, 128, (32, 64), dtype=torch.int8)
    found = reference("Torch._weight_int8pack_mm")(x, weight, scales)
    close(found, functional.linear(x, weight.double() * scales[:, None]))
    groups = torch.rand(2, 32).double()
    found = reference("npu_weight_quant_batchmatmul")(
        x, weight.t(), groups, groups * 3, antiquant_group_size=32
    )
    wide = groups.repeat_interleave(32, 0)
    close(found, x @ ((weight.t().double() + wide * 3) * wide))


def test_rounding_to_8_bit_integers():
    x = torch.tensor([[1.1, -2.0, 0.5], [0.1, 0.04, -0.025]], dtype=torch.float64)
    values, scale = reference("NPU.npu_dynamic_quant")(x)
    close(scale, torch.tensor([2.0, 0.1]).double() / 127, 1e-7)
    assert values.tolist() == [[70, -127, 32], [127, 51, -32]]
    half = torch.tensor([[0.5, 1.5, 500.0]], dtype=torch.float64)
    found = reference("npu_quantize")(half, torch.ones(1).double(), None)
    assert found.tolist() == [[0, 2, 127]]
    gated = normal(3, 8)
    found = reference("npu_dequant_swiglu_quant")(gated, activate_left=True, quant_mode=1)
    close(found[1], (functional.silu(gated[:, :4]) * gated[:, 4:]).abs().amax(-1) / 127)
