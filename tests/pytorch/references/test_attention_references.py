# SPDX-License-Identifier: Apache-2.0
"""References of attention agree with PyTorch's own kernels and with sums written as loops."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from reference_functions import close, normal, reference  # noqa: E402
from torch.nn import functional  # noqa: E402

import msprobe.pytorch.references  # noqa: E402, F401
from msprobe.replay.references import NoReferenceError  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(20)


def looped(q, k, v, scale, sees, bias=None, softcap=0.0):
    """Attention of one sequence (heads, length, size), element by element."""
    heads, queries = q.shape[:2]
    result = torch.zeros(heads, queries, v.shape[-1], dtype=q.dtype)
    sums = torch.full((heads, queries), -math.inf, dtype=q.dtype)
    share = heads // k.shape[0]
    for head in range(heads):
        for row in range(queries):
            columns = [column for column in range(k.shape[1]) if sees(row, column)]
            if not columns:
                continue
            scores = torch.stack(
                [(q[head, row] * k[head // share, column]).sum() * scale for column in columns]
            )
            if softcap:
                scores = softcap * (scores / softcap).tanh()
            if bias is not None:
                scores = scores + torch.stack([bias(head, row, column) for column in columns])
            sums[head, row] = scores.logsumexp(0)
            result[head, row] = scores.softmax(0) @ v[head // share, columns]
    return result, sums


@pytest.mark.parametrize("masked", ["none", "bool", "additive", "causal"])
@pytest.mark.parametrize("groups", [1, 2])
def test_scaled_dot_product_attention_and_its_gradients(masked, groups):
    q, k, v = normal(2, 4, 5, 8), normal(2, 4 // groups, 7, 8), normal(2, 4 // groups, 7, 6)
    options = {"enable_gqa": groups > 1, "scale": 0.3}
    if masked == "bool":
        options["attn_mask"] = torch.rand(2, 1, 5, 7) > 0.3
    elif masked == "additive":
        options["attn_mask"] = normal(4, 5, 7)
    elif masked == "causal":
        options["is_causal"] = True
    gradient = normal(2, 4, 5, 6)
    results = []
    for function in (
        reference("Functional.scaled_dot_product_attention"),
        functional.scaled_dot_product_attention,
    ):
        leaves = [one.clone().requires_grad_() for one in (q, k, v)]
        output = function(*leaves, **options)
        results.append((output, *torch.autograd.grad(output, leaves, gradient)))
    for target, expected in zip(*results, strict=True):
        close(target, expected)


def test_a_query_that_sees_no_key_gets_zeros_and_no_nan_gradient():
    q, k, v = (normal(1, 1, 3, 4).requires_grad_() for _ in range(3))
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    output = reference("scaled_dot_product_attention")(q, k, v, attn_mask=mask)
    close(output, functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))
    assert torch.equal(output[0, 0, 1], torch.zeros(4, dtype=torch.float64))
    assert all(one.isfinite().all() for one in torch.autograd.grad(output.sum(), (q, k, v)))


def test_attention_with_dropout_has_no_reference():
    one = normal(1, 1, 3, 4)
    with pytest.raises(NoReferenceError, match=r"dropout 0\.1"):
        reference("scaled_dot_product_attention")(one, one, one, dropout_p=0.1)


@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_of_the_cpu_with_its_sums_and_its_backward_pass(causal):
    q, k, v = normal(2, 3, 5, 8), normal(2, 3, 5, 8), normal(2, 3, 5, 8)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    output, sums = kernel(q, k, v, 0.0, causal)
    found = reference("Aten._scaled_dot_product_flash_attention_for_cpu")(q, k, v, 0.0, causal)
    close(found[0], output)
    close(found[1], sums)
    grad = normal(2, 3, 5, 8)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    arguments = (grad, q, k, v, output, sums, 0.0, causal)
    name = "Aten._scaled_dot_product_flash_attention_for_cpu_backward"
    for target, expected in zip(reference(name)(*arguments), backward(*arguments), strict=True):
        close(target, expected)


def test_the_kernel_of_the_cpu_with_a_query_that_sees_no_key():
    q = normal(1, 2, 3, 8)
    mask = torch.zeros(3, 3, dtype=q.dtype)
    mask[1] = -torch.inf
    output, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, q, q, attn_mask=mask
    )
    name = "Aten._scaled_dot_product_flash_attention_for_cpu"
    found = reference(name)(q, q, q, attn_mask=mask)
    close(found[0], output)
    close(found[1], sums)


def test_kernels_of_accelerators_take_the_arguments_of_their_schemas():
    q = normal(1, 2, 5, 8)
    expected = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    ops = torch.ops.aten
    calls = {
        ops._scaled_dot_product_flash_attention: (q, q, q, 0.0, True),
        ops._scaled_dot_product_efficient_attention: (q, q, q, None, True, 0.0, True),
        ops._scaled_dot_product_cudnn_attention: (q, q, q, None, True, 0.0, True),
    }
    for op, arguments in calls.items():
        outputs = reference(f"torch.ops.aten.{op.__name__}")(*arguments)
        assert len(outputs) == len(op.default._schema.returns)
        close(outputs[0], expected)
    b = q.transpose(1, 2)
    outputs = reference("Aten._flash_attention_forward")(
        b, b, b, None, None, 5, 5, 0.0, True, False
    )
    assert len(outputs) == len(ops._flash_attention_forward.default._schema.returns)
    close(outputs[0].transpose(1, 2), expected)


@pytest.mark.parametrize("window", [(-1, -1), (2, 1), (1, -1)])
@pytest.mark.parametrize("causal", [False, True])
def test_flash_attn_func(window, causal):
    q, k, v = normal(2, 4, 6, 8), normal(2, 6, 3, 8), normal(2, 6, 3, 8)

    def sees(row, column):
        distance = column - (row + 2)
        left, right = window
        return not (
            (causal and distance > 0)
            or (left >= 0 and distance < -left)
            or (right >= 0 and distance > right)
        )

    slopes = torch.rand(6, dtype=torch.float64)
    found = reference("flash_attn_func")(
        *(q, k, v),
        causal=causal,
        window_size=window,
        softcap=5.0,
        alibi_slopes=slopes,
        return_attn_probs=True,
    )
    for number in range(2):
        one = [tensor[number].transpose(0, 1) for tensor in (q, k, v)]
        expected, sums = looped(
            *one,
            1 / math.sqrt(8),
            sees,
            bias=lambda head, row, column: -slopes[head] * abs(column - row - 2),
            softcap=5.0,
        )
        close(found[0][number], expected.transpose(0, 1))
        close(found[1][number], sums.masked_fill(sums == -math.inf, math.inf))


def test_packed_sequences_are_attended_one_by_one():
    q, k, v = normal(9, 4, 8), normal(12, 2, 8), normal(12, 2, 8)
    q_bounds, k_bounds = torch.tensor([0, 2, 5, 9]), torch.tensor([0, 4, 7, 12])
    varlen = reference("flash_attn_varlen_func")
    packed = varlen(q, k, v, q_bounds, k_bounds, 4, 5, causal=True)
    operator = reference("torch.ops.flash_attn._flash_attn_varlen_forward")(
        q, k, v, q_bounds, k_bounds, 4, 5, 0.0, 1 / math.sqrt(8), True
    )
    assert torch.equal(operator[0], packed)
    single = reference("flash_attn_func")
    for number in range(3):
        rows = slice(*q_bounds[number : number + 2])
        columns = slice(*k_bounds[number : number + 2])
        one = single(q[None, rows], k[None, columns], v[None, columns], causal=True)
        close(packed[rows], one[0])


def test_packed_tensors_are_the_same_as_single_ones():
    qkv = normal(2, 5, 3, 4, 8)
    q, k, v = qkv.unbind(2)
    expected = reference("flash_attn_func")(q, k, v, causal=True)
    assert torch.equal(reference("flash_attn_qkvpacked_func")(qkv, causal=True), expected)
    assert torch.equal(
        reference("flash_attn_kvpacked_func")(q, qkv[:, :, 1:], causal=True), expected
    )


def test_the_backward_operator_of_flash_attn_writes_into_its_buffers():
    q, k, v, grad = (normal(1, 4, 2, 8) for _ in range(4))
    leaves = [one.clone().requires_grad_() for one in (q, k, v)]
    scale = 0.2
    output = functional.scaled_dot_product_attention(
        *(one.transpose(1, 2) for one in leaves), is_causal=True, scale=scale
    ).transpose(1, 2)
    expected = torch.autograd.grad(output, leaves, grad)
    buffers = [torch.zeros_like(one) for one in (q, k, v)]
    reference("flash_attn._flash_attn_backward")(
        *(grad, q, k, v, output.detach(), None, *buffers),
        *(0.0, scale, True, -1, -1, 0.0, None, False),
    )
    for target, one in zip(buffers, expected, strict=True):
        close(target, one)


def in_layout(tensor, layout):
    """Return (batch, heads, length, size) in a layout of the NPU."""
    return {
        "BNSD": lambda: tensor,
        "BSND": lambda: tensor.transpose(1, 2),
        "BSH": lambda: tensor.transpose(1, 2).flatten(-2),
        "SBH": lambda: tensor.transpose(1, 2).flatten(-2).transpose(0, 1),
    }[layout]()


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
def test_npu_fusion_attention_in_all_layouts_with_its_gradient(layout):
    q, k, v, grad = normal(2, 4, 5, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 8), normal(2, 4, 5, 8)
    mask = torch.ones(5, 5).triu(1).bool()
    leaves = [one.clone().requires_grad_() for one in (q, k, v)]
    expected = functional.scaled_dot_product_attention(
        *leaves, is_causal=True, scale=0.5, enable_gqa=True
    )
    given = [in_layout(one, layout) for one in (q, k, v)]
    found = reference("NPU.npu_fusion_attention")(*given, 4, layout, atten_mask=mask, scale=0.5)
    close(found[0], in_layout(expected, layout))
    assert len(found) == 7
    scores = (q @ k.repeat_interleave(2, 1).transpose(-2, -1) * 0.5).masked_fill(mask, -math.inf)
    assert found[1].shape == found[2].shape == (2, 4, 5, 8)
    close(found[1][..., 3], scores.amax(-1))
    close(found[2][..., 7], (scores - scores.amax(-1, keepdim=True)).exp().sum(-1))
    gradients = reference("npu_fusion_attention_grad")(
        *given,
        *(in_layout(grad, layout), 4, layout),
        atten_mask=mask,
        scale_value=0.5,
        softmax_max=found[1],
        softmax_sum=found[2],
        attention_in=found[0],
        keep_prob=1.0,
    )
    for target, one in zip(gradients, torch.autograd.grad(expected, leaves, grad), strict=False):
        close(target, in_layout(one, layout))


@pytest.mark.parametrize(
    ("mode", "sees"),
    [
        (0, lambda row, column: -2 <= column - row <= 1),
        (2, lambda row, column: column <= row),
        (3, lambda row, column: column <= row + 3),
        (4, lambda row, column: -2 <= column - row - 3 <= 1),
        (6, lambda row, column: column <= row + 3 or column < 6),
    ],
)
def test_sparse_modes_of_the_npu(mode, sees):
    q, k, v = normal(1, 2, 4, 8), normal(1, 2, 7, 8), normal(1, 2, 7, 8)
    mask = torch.zeros(4, 7) if mode == 0 else torch.ones(2048, 2048).triu(1)
    found = reference("npu_fusion_attention")(
        *(q, k, v, 2, "BNSD"),
        atten_mask=mask.bool(),
        scale=0.4,
        pre_tockens=2,
        next_tockens=1,
        sparse_mode=mode,
        prefix=[6],
    )
    expected, _ = looped(q[0], k[0], v[0], 0.4, sees)
    close(found[0][0], expected)


def test_without_a_mask_the_npu_ignores_its_sparse_mode():
    q = normal(1, 2, 4, 8)
    found = reference("npu_fusion_attention")(q, q, q, 2, "BNSD", scale=0.4, sparse_mode=3)
    close(found[0], functional.scaled_dot_product_attention(q, q, q, scale=0.4))


def test_pse_is_added_before_scaling_or_after_it():
    q, pse = normal(1, 2, 4, 8), normal(1, 2, 4, 4)
    attention = functional.scaled_dot_product_attention
    found = reference("npu_fusion_attention")(q, q, q, 2, "BNSD", pse=pse, scale=0.5)
    close(found[0], attention(q, q, q, attn_mask=pse * 0.5, scale=0.5))
    later = reference("npu_fusion_attention_v2")(q, q, q, 2, "BNSD", pse=pse, scale=0.5, pse_type=0)
    close(later[0], attention(q, q, q, attn_mask=pse, scale=0.5))


def test_attention_of_mindspore_returns_the_attention_alone():
    q, k = normal(1, 4, 5, 8), normal(1, 2, 5, 8)
    attention = reference("Functional.flash_attention_score")
    found = attention(q, k, k, 4, scalar_value=0.3, input_layout="BNSD")
    expected = functional.scaled_dot_product_attention(q, k, k, scale=0.3, enable_gqa=True)
    close(found, expected)
    mask = torch.ones(5, 5).triu(1).bool()
    found = attention(q, k, k, 4, attn_mask=mask, scalar_value=0.3, input_layout="BNSD")
    close(found[0], looped(q[0], k[0], k[0], 0.3, lambda row, column: column <= row)[0])


def test_layout_tnd_leaves_trailing_sequences_out():
    q, k, v = normal(9, 4, 8), normal(9, 2, 8), normal(9, 2, 8)
    found = reference("npu_fusion_attention")(
        *(q, k, v, 4, "TND"),
        atten_mask=torch.ones(2048, 2048).triu(1).bool(),
        sparse_mode=3,
        scale=0.3,
        actual_seq_qlen=[2, 5, 0],
        actual_seq_kvlen=[3, 7, 0],
    )
    for rows, columns, ahead in ((slice(0, 2), slice(0, 3), 1), (slice(2, 5), slice(3, 7), 1)):
        one = [tensor.transpose(0, 1) for tensor in (q[rows], k[columns], v[columns])]
        expected, _ = looped(*one, 0.3, lambda row, column, a=ahead: column <= row + a)
        close(found[0][rows], expected.transpose(0, 1))
    assert not found[0][5:].any()
    assert found[1].shape == (9, 4, 8)
