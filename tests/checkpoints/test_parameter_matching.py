# SPDX-License-Identifier: Apache-2.0
"""Parameters under other names and in other forms are found and measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from builders.checkpoints import write_safetensors, write_torch  # noqa: E402
from msprobe.checkpoints.comparing import compare_checkpoints  # noqa: E402
from msprobe.checkpoints.result_json import comparison_json  # noqa: E402
from msprobe.checkpoints.result_lines import comparison_lines  # noqa: E402

pytestmark = pytest.mark.torch

LAYERS = 4


def model(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed.weight": (40, 16), "norm.weight": (16,)}
    for layer in range(LAYERS):
        begin = f"layers.{layer}."
        shapes |= {begin + f"attn.{kind}_proj.weight": (16, 16) for kind in "qo"}
        shapes |= {begin + f"attn.{kind}_proj.weight": (8, 16) for kind in "kv"}
        shapes |= {begin + f"attn.{kind}_proj.bias": (8 if kind in "kv" else 16,) for kind in "qkv"}
        shapes |= {begin + f"mlp.{kind}.weight": (24, 16) for kind in ("gate", "up")}
        shapes |= {begin + "mlp.down.weight": (16, 24), begin + "norm.weight": (16,)}
    return {
        name: torch.randn(shape, generator=generator) + ("norm" in name)
        for name, shape in shapes.items()
    }


@pytest.fixture
def compare(tmp_path: Path):
    def run(target, reference, **options):
        return compare_checkpoints(
            write_torch(tmp_path / "t.pt", target),
            write_safetensors(tmp_path / "r.safetensors", reference),
            **options,
        )

    return run


def classes(found) -> dict[str, str]:
    return {each.name: each.change.value for each in found.differences}


def other_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    words = {"layers.": "transformer.h.", "attn.": "self_attn.", "_proj": "", "mlp.": "ffn."}
    found = {}
    for name, tensor in tensors.items():
        for old, new in words.items():
            name = name.replace(old, new)  # noqa: PLW2901
        found[name] = tensor
    return found


def partners(found) -> dict[str, str]:
    return {
        each.pair.target.name: each.pair.reference.name
        for each in found.differences
        if each.pair.target is not None and each.pair.reference is not None
    }


@pytest.mark.parametrize("change", [1e-3, 0.1], ids=str)
def test_renamed_and_changed_parameters_are_paired(compare, change: float) -> None:
    base = model()
    names = dict(zip(other_names(base), base, strict=True))
    generator = torch.Generator().manual_seed(9)
    moved = {
        name: tensor + change * torch.randn(tensor.shape, generator=generator)
        for name, tensor in other_names(base).items()
    }
    found = compare(moved, base)
    assert partners(found) == names
    assert set(classes(found).values()) == {"changed"}
    assert all(each.relative_error < 2 * change for each in found.differences)


def test_parameters_trained_anew_are_paired_by_the_pattern_of_their_names(compare) -> None:
    base = {name: tensor for name, tensor in model().items() if "attn" in name}
    moved = {name.replace("layers.", "blocks."): tensor for name, tensor in model(1).items()}
    moved = {name: tensor for name, tensor in moved.items() if "attn" in name}
    found = compare(moved, base)
    assert partners(found) == {name: name.replace("blocks.", "layers.") for name in moved}


def test_unrelated_parameters_of_one_shape_are_not_paired(compare) -> None:
    found = compare({"new.thing": torch.randn(30, 30)}, {"other": torch.randn(30, 30)})
    assert sorted(classes(found).values()) == ["added", "removed"]


@pytest.mark.parametrize("change", [0.0, 1e-3], ids=str)
@pytest.mark.parametrize("names", [False, True], ids=["same names", "other names"])
@pytest.mark.parametrize("shape", [(6, 6), (40, 6)], ids=str)
def test_transposed_matrices_are_recognised(compare, change, names, shape) -> None:
    base = {"a.weight": torch.randn(shape), "b.weight": torch.randn(6)}
    turned = dict(base)
    matrix = turned.pop("a.weight").T.contiguous()
    turned["z.kernel" if names else "a.weight"] = matrix + change
    found = compare(turned, base)
    (each,) = [each for each in found.differences if each.change.is_difference]
    assert each.pair.relation == "transposed"
    assert each.change == ("changed" if change else "transposed")
    assert each.metrics.max_abs_err == pytest.approx(change, abs=1e-6)


def fused(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {name: tensor for name, tensor in tensors.items() if "layers" not in name}
    for layer in range(LAYERS):
        attn, mlp = f"layers.{layer}.attn.", f"layers.{layer}.mlp."
        for part in ("weight", "bias"):
            qkv = [tensors[f"{attn}{kind}_proj.{part}"] for kind in "qkv"]
            found[f"{attn}qkv.{part}"] = torch.cat(qkv)
        found[f"{mlp}gate_up.weight"] = torch.cat(
            [tensors[f"{mlp}gate.weight"], tensors[f"{mlp}up.weight"]]
        )
        for name in (f"{attn}o_proj.weight", f"{mlp}down.weight", f"layers.{layer}.norm.weight"):
            found[name] = tensors[name]
    return found


def test_joined_and_split_parameters_are_recognised(compare) -> None:
    base = model()
    for target, reference, word in ((fused(base), base, "joined"), (base, fused(base), "split")):
        found = compare(target, reference)
        assert found.counts[word] == 3 * LAYERS
        assert found.counts["equal"] == len(found.differences) - 3 * LAYERS
    joined = compare(fused(base), base).differences
    assert {each.pair.reference.name for each in joined if each.change == "joined"} >= {
        "layers.0.attn.q_proj.weight + layers.0.attn.k_proj.weight + layers.0.attn.v_proj.weight"
    }


def test_a_change_within_a_joined_parameter_is_measured(compare) -> None:
    base = model()
    whole = fused(base)
    whole["layers.2.attn.qkv.weight"] = whole["layers.2.attn.qkv.weight"].clone()
    whole["layers.2.attn.qkv.weight"][20, 3] += 0.5
    found = compare(whole, base)
    (worst,) = found.worst()
    assert (worst.name, worst.pair.relation) == ("layers.2.attn.qkv.weight", "joined")
    assert worst.metrics.max_abs_index == 20 * 16 + 3
    assert found.counts["joined"] == 3 * LAYERS - 1


def test_query_key_and_value_of_megatron_are_recognised(compare) -> None:
    base = {name: tensor for name, tensor in model().items() if "attn" in name}
    woven = dict(base)
    for layer in range(LAYERS):
        names = [f"layers.{layer}.attn.{kind}_proj.weight" for kind in "qkv"]
        parts = [woven.pop(name).chunk(4) for name in names]
        groups = [torch.cat(group) for group in zip(*parts, strict=True)]
        woven[f"layers.{layer}.attn.linear_qkv.weight"] = torch.cat(groups)
    found = compare(woven, base)
    assert found.counts["joined"] == LAYERS
    assert not found.worst()


def test_matrices_joined_by_columns_are_recognised(compare) -> None:
    parts = {f"a.{kind}.weight": torch.randn(7, 5) for kind in "qkv"}
    found = compare({"a.qkv.weight": torch.cat(list(parts.values()), dim=1)}, parts)
    assert classes(found) == {"a.qkv.weight": "joined"}


@pytest.mark.parametrize("side", ["target", "reference"])
def test_tied_parameters_are_recognised(compare, side: str) -> None:
    once = model()
    twice = once | {"lm_head.weight": once["embed.weight"]}
    found = compare(twice, once) if side == "target" else compare(once, twice)
    assert found.counts["tied"] == 1
    assert found.counts["equal"] == len(once)
    constant = {"a": torch.ones(9)}
    found = compare(constant | {"b": torch.ones(9)}, constant)
    assert found.counts["added"] == 1


def test_arrays_in_files_of_other_names_are_compared(tmp_path: Path) -> None:
    np.save(tmp_path / "x1.npy", np.arange(6.0))
    np.save(tmp_path / "x2.npy", np.arange(6.0) + 1e-3)
    found = compare_checkpoints(tmp_path / "x1.npy", tmp_path / "x2.npy")
    assert list(classes(found).values()) == ["changed"]
    assert compare_checkpoints(tmp_path / "x1.npy", tmp_path / "x1.npy").is_equal


def test_changes_are_summed_up_by_layer_and_drawn(compare) -> None:
    base = model()
    changed = dict(base)
    for layer in (1, 3):
        name = f"layers.{layer}.mlp.down.weight"
        changed[name] = base[name] * (1 + 2 * 10.0**-layer)
    found = compare(changed, base)
    by_layer = {each["layer"]: each for each in comparison_json(found)["layers"]}
    assert [by_layer[number]["changed"] for number in (None, 0, 1, 2, 3)] == [0, 0, 1, 0, 1]
    assert by_layer[1]["relative_l2"] == pytest.approx(0.2, rel=1e-3)
    text = "\n".join(line.plain for line in comparison_lines(found))
    assert "relative l2 by layer, 0 to 3" in text
    assert "·▇·▅  mlp.down.weight" in text
    assert "2 layers changed, most in layer 1: 0.2" in text
