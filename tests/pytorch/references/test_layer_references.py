# SPDX-License-Identifier: Apache-2.0
"""References of activations, norms, softmaxes, rotations and losses agree with plain PyTorch."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from reference_functions import close, normal, reference  # noqa: E402
from torch.nn import functional  # noqa: E402

from msprobe.replay.references import NoReferenceError, find  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(21)


def grads(function, inputs, *grad_outputs):
    """Return the gradients of a function by autograd."""
    leaves = [one.clone().requires_grad_() for one in inputs]
    outputs = function(*leaves)
    outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
    return torch.autograd.grad(outputs, leaves, grad_outputs)


def same_gradients(name, arguments, function, inputs, grad):
    """Compare a backward reference with the gradients of plain PyTorch."""
    found = reference(name)(*arguments)
    found = (found,) if isinstance(found, torch.Tensor) else found
    for target, expected in zip(found, grads(function, inputs, grad), strict=True):
        close(target, expected)


def test_fast_gelu_is_stable_for_large_numbers():
    x = torch.tensor([-800.0, -3.0, 0.0, 0.5, 800.0], dtype=torch.float64)
    expected = x / (1 + torch.exp(-1.702 * x))
    close(reference("NPU.npu_fast_gelu")(x), expected)
    assert torch.equal(reference("NPU.fast_gelu")(x), reference("npu_fast_gelu")(x))
    x, g = normal(3, 4), normal(3, 4)
    # The kernel's own formula.
    e = torch.exp(-1.702 * x.abs())
    ramp = torch.exp(1.702 * (x - x.abs()))
    expected = g * (e + 1.702 * x * e + ramp) / (1 + e) ** 2
    close(reference("npu_fast_gelu_backward")(g, x), expected)


@pytest.mark.parametrize("dim", [-1, 0])
def test_swiglu_and_its_gradient_in_float64(dim):
    x = normal(4, 6)
    first, second = x.chunk(2, dim)

    def plain(one):
        a, b = one.split(one.shape[dim] // 2, dim)
        return functional.silu(a) * b

    found = reference("NPU.npu_swiglu")(x, dim)
    assert found.dtype == torch.float64
    close(found, functional.silu(first) * second)
    grad = torch.randn_like(found)
    same_gradients("npu_swiglu_backward", (grad, x, dim), plain, (x,), grad)


def test_geglu_activates_the_second_half_unless_told_otherwise():
    x = normal(3, 8)
    for tanh in (0, 1):
        kind = "tanh" if tanh else "none"
        out, activated = reference("npu_geglu")(x, -1, tanh)
        close(activated, functional.gelu(x[:, 4:], approximate=kind))
        close(out, x[:, :4] * activated)
    out, activated = reference("npu_geglu")(x, approximate=0, activate_left=True)
    close(out, functional.gelu(x[:, :4]) * x[:, 4:])
    close(reference("gelu_and_mul")(x), functional.gelu(x[:, :4]) * x[:, 4:])
    close(reference("silu_and_mul")(x), functional.silu(x[:, :4]) * x[:, 4:])


def test_mish_and_silu():
    x, g = normal(5), normal(5)
    close(reference("npu_mish")(x), functional.mish(x))
    same_gradients("npu_mish_backward", (g, x), functional.mish, (x,), g)
    close(reference("npu_silu")(x), functional.silu(x))
    same_gradients("npu_silu_backward", (g, x, functional.silu(x)), functional.silu, (x,), g)


def test_rms_norm_returns_the_reciprocal_root_and_a_reduced_weight_gradient():
    x, weight, g = normal(4, 8), normal(8), normal(4, 8)
    out, factor = reference("NPU.npu_rms_norm")(x, weight, 1e-5)
    close(out, functional.rms_norm(x, (8,), weight, 1e-5))
    assert factor.shape == (4, 1)
    assert factor.dtype == torch.float64
    assert reference("npu_rms_norm")(torch.zeros(1, 2), torch.ones(2))[1][0, 0] == pytest.approx(
        1e3
    )  # the operator's own default: 1e-6
    same_gradients(
        "npu_rms_norm_backward",
        (g, x, weight, factor),
        lambda a, b: functional.rms_norm(a, (8,), b, 1e-5),
        (x, weight),
        g,
    )
    out, factor, added = reference("npu_add_rms_norm")(x, g, weight, 1e-5)
    assert torch.equal(added, x + g)
    close(out, functional.rms_norm(x + g, (8,), weight, 1e-5))


def test_the_default_epsilon_of_rms_norm_is_that_of_the_recorded_type():
    x = normal(3, 4) * 1e-4
    found = find(["Functional.rms_norm"])
    for recorded in (torch.float32, torch.bfloat16, torch.float64):
        expected = functional.rms_norm(x.to(recorded), (4,)).double()
        value = found.for_dtype(recorded)(x.to(recorded).double(), (4,))
        close(value, expected, 4 * torch.finfo(recorded).eps)


def test_layer_norm_uses_weight_bias_and_epsilon():
    x, weight, bias = normal(2, 3, 4), normal(3, 4), normal(3, 4)
    for given in ((None, None), (weight, None), (weight, bias)):
        found = reference("NPU.npu_layer_norm_eval")(x, [3, 4], *given, eps=0.1)
        close(found, functional.layer_norm(x, (3, 4), *given, eps=0.1))


@pytest.mark.parametrize("shape", [(2, 6, 4, 3), (2, 6, 5), (2, 6)])
def test_group_norm_with_silu(shape):
    x, weight, bias = normal(*shape), normal(6), normal(6)
    out, mean, factor = reference("npu_group_norm_silu")(x, weight, bias, 3, 1e-3)
    close(out, functional.silu(functional.group_norm(x, 3, weight, bias, 1e-3)))
    groups = x.reshape(2, 3, -1)
    close(mean, groups.mean(-1))
    close(factor, 1 / (groups.var(-1, correction=0) + 1e-3).sqrt())


@pytest.mark.parametrize("fixed", [False, True])
def test_scaled_masked_softmax(fixed):
    x, mask, g = normal(2, 3, 4, 4), torch.rand(2, 1, 4, 4) > 0.6, normal(2, 3, 4, 4)
    shown = torch.ones(4, 4).triu(1).bool() if fixed else mask

    def plain(one):
        return torch.where(shown, one.new_tensor(-10000.0), one * 0.7).softmax(-1)

    out = reference("NPU.npu_scaled_masked_softmax")(x, mask, 0.7, fixed)
    close(out, plain(x))
    same_gradients("npu_scaled_masked_softmax_backward", (g, out, mask, 0.7, fixed), plain, (x,), g)


def test_a_row_that_is_masked_as_a_whole():
    x, mask, g = normal(1, 1, 2, 3), torch.tensor([[[[True] * 3, [False] * 3]]]), normal(1, 1, 2, 3)
    out = reference("npu_scaled_masked_softmax")(x, mask)
    close(out[0, 0, 0], torch.full((3,), 1 / 3, dtype=torch.float64))
    gradient = reference("npu_scaled_masked_softmax_backward")(g, out, mask, 1.0, False)
    assert not gradient[0, 0, 0].any()


def complex_rotation(x, angles, interleaved):
    """Turn pairs by multiplying complex numbers."""
    if interleaved:
        pairs = torch.complex(x[..., ::2], x[..., 1::2])
        turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles))
        return turned.flatten(-2)
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half], x[..., half:])
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), -1)


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotary_mul_turns_pairs(mode):
    x, angles = normal(2, 3, 5, 8), torch.rand(1, 1, 5, 4, dtype=torch.float64)
    interleaved = mode == "interleave"
    wide = angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)
    found = reference("NPU.npu_rotary_mul")(x, wide.cos(), wide.sin(), mode)
    close(found, complex_rotation(x, angles, interleaved))
    both = reference("npu_apply_rotary_pos_emb")(x, x, wide.cos(), wide.sin(), "BNSD", mode)
    assert torch.equal(both[0], found)
    grad, before = normal(2, 3, 5, 8), x.clone()

    def plain(one, cos, sin):
        if interleaved:
            pairs = one.unflatten(-1, (-1, 2)).flip(-1) * torch.tensor([-1.0, 1.0]).double()
            return one * cos + pairs.flatten(-2) * sin
        return one * cos + torch.cat((-one[..., 4:], one[..., :4]), -1) * sin

    arguments = (x, wide.cos(), wide.sin())
    same_gradients("npu_rotary_mul_backward", (grad, *arguments, mode), plain, arguments, grad)
    assert torch.equal(x, before)


@pytest.mark.parametrize("interleaved", [False, True])
def test_apply_rotary_emb_turns_the_first_part_of_heads_from_an_offset(interleaved):
    x, angles = normal(2, 4, 3, 10), torch.rand(9, 3, dtype=torch.float64)
    found = reference("apply_rotary_emb")(
        x, angles.cos(), angles.sin(), interleaved, seqlen_offsets=torch.tensor([1, 5])
    )
    for number, offset in enumerate((1, 5)):
        one = x[number, ..., :6]
        chosen = angles[offset : offset + 4, None]
        close(found[number, ..., :6], complex_rotation(one, chosen, interleaved))
    assert torch.equal(found[..., 6:], x[..., 6:])


def test_apply_rotary_pos_emb_of_transformers():
    q, k = normal(2, 4, 5, 8), normal(2, 2, 5, 8)
    angles = torch.rand(2, 5, 4, dtype=torch.float64)
    wide = torch.cat((angles, angles), -1)
    found = reference("apply_rotary_pos_emb")(q, k, wide.cos(), wide.sin())
    for target, given in zip(found, (q, k), strict=True):
        close(target, complex_rotation(given, angles[:, None], interleaved=False))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(reduction, smoothing, weighted):
    weight = torch.rand(5, dtype=torch.float64) if weighted else None
    options = {"reduction": reduction, "label_smoothing": smoothing}
    for shape in ((5,), (6, 5), (3, 5, 2, 2)):
        x = normal(*shape)
        places = shape[:1] + shape[2:] if len(shape) > 1 else ()
        target = torch.randint(0, 5, places)
        if target.ndim:
            target.view(-1)[1] = 3
        cases = [(target, 3), (target, -100), (torch.rand(shape, dtype=torch.float64), -100)]
        for labels, ignored in cases:
            if labels.ndim == 0 and int(labels) == ignored:
                continue
            arguments = (x, labels, weight, None, ignored, None)
            found = reference("Functional.cross_entropy")(*arguments, **options)
            close(found, functional.cross_entropy(*arguments, **options))


def test_cross_entropy_of_the_npu_with_its_log_softmax_and_gradient():
    x, target, grad = normal(6, 5), torch.tensor([0, 4, 2, 2, 1, 3]), torch.tensor(0.7).double()
    loss, logs, *others = reference("NPU.npu_cross_entropy_loss")(
        x, target, ignore_index=2, label_smoothing=0.1
    )

    def plain(one):
        return functional.cross_entropy(one, target, ignore_index=2, label_smoothing=0.1)

    close(loss, plain(x))
    close(logs, x.log_softmax(-1))
    assert others == [None, None]
    found = reference("npu_cross_entropy_loss_backward")(
        grad, logs, target, ignore_index=2, label_smoothing=0.1
    )
    close(found, grads(plain, (x,), grad)[0])
    with pytest.raises(NoReferenceError, match="z-loss"):
        reference("npu_cross_entropy_loss")(x, target, return_zloss=True)


def test_the_old_form_of_a_reduction():
    x, target = normal(3, 4), torch.tensor([0, 1, 2])
    found = reference("Functional.cross_entropy")
    close(
        found(x, target, size_average=False), functional.cross_entropy(x, target, reduction="sum")
    )
    close(found(x, target, reduce=False), functional.cross_entropy(x, target, reduction="none"))


def test_losses_with_shares_as_labels_and_with_logits_that_were_never_stored():
    x, shares = normal(3, 4), torch.rand(3, 4, dtype=torch.float64).softmax(-1)
    found = reference("npu_softmax_cross_entropy_with_logits")(x, shares)
    close(found, functional.cross_entropy(x, shares, reduction="none"))
    weight, target = normal(7, 4), torch.tensor([0, 6, 2])
    found = reference("fused_linear_cross_entropy")(x, weight, target)
    close(found, functional.cross_entropy(x @ weight.T, target))


def test_layers_of_megatron_apex_and_liger():
    x, bias, weight = normal(3, 8), normal(8), normal(8)
    a, b = (x + bias).chunk(2, -1)
    close(reference("Autograd.BiasSwiGLUFunction")(x, bias, False, False), functional.silu(a) * b)
    close(
        reference("Autograd.GeLUFunction")(x, bias), functional.gelu(x + bias, approximate="tanh")
    )
    close(reference("Autograd.LigerSiLUMulFunction")(x, bias), functional.silu(x) * bias)
    norm = functional.layer_norm(x, (8,), weight, bias, 1e-3)
    close(reference("Autograd.FusedLayerNormAffineFunction")(x, weight, bias, (8,), 1e-3), norm)
    norm = functional.rms_norm(x, (8,), weight, 1e-3)
    close(reference("Autograd.FusedRMSNormAffineFunction")(x, weight, (8,), 1e-3, False), norm)
    norm = functional.rms_norm(x, (8,), weight + 1, 1e-3)
    close(reference("Autograd.LigerRMSNormFunction")(x, weight, 1e-3, 1.0, "gemma", True), norm)
    scores = normal(2, 4, 4)
    causal = torch.full((4, 4), -math.inf).triu(1).double()
    found = reference("Autograd.ScaledUpperTriangMaskedSoftmax")(scores, 0.5)
    close(found, (scores * 0.5 + causal).softmax(-1))
    mask = torch.tensor([[True, True], [False, True]])
    found = reference("Autograd.ScaledMaskedSoftmax")(normal(1, 1, 2, 2), mask, 2.0)
    assert found.tolist() == [[[[0.0, 0.0], [1.0, 0.0]]]]
