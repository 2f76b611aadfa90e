# SPDX-License-Identifier: Apache-2.0
"""What changed between two checkpoints: planted changes, and numbers against NumPy's own."""

from __future__ import annotations

import math
import resource
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from builders.checkpoints import WRITERS, state, write_safetensors, write_torch  # noqa: E402
from msprobe.checkpoints.comparing import Change, compare_checkpoints  # noqa: E402
from msprobe.checkpoints.result_json import comparison_json, parameters_json  # noqa: E402
from msprobe.checkpoints.result_lines import comparison_lines  # noqa: E402
from msprobe.errors import UsageError  # noqa: E402
from msprobe.numerics.elementwise import Tolerance  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def compare(tmp_path: Path):
    def run(target, reference, **options):
        return compare_checkpoints(
            write_safetensors(tmp_path / "t.safetensors", target),
            write_torch(tmp_path / "r.pt", reference),
            **options,
        )

    return run


def changes(found) -> dict[str, str]:
    return {each.name: each.change.value for each in found.differences}


@pytest.mark.parametrize("target", WRITERS)
@pytest.mark.parametrize("reference", ["safetensors", "mindspore", "torch shards"])
def test_equal_values_are_equal_in_every_pair_of_formats(
    tmp_path: Path, target: str, reference: str
) -> None:
    one = WRITERS[target][1](tmp_path / f"t_{WRITERS[target][0]}", state())
    other = WRITERS[reference][1](tmp_path / f"r_{WRITERS[reference][0]}", state())
    found = compare_checkpoints(one, other)
    assert not found.is_different
    # It has no partner, and makes no difference.
    beside = ["config.json"] if target == "folder" else []
    assert [each.name for each in found.uncompared] == beside
    assert found.is_equal is (not beside)
    assert set(changes(found).values()) == {"equal"}
    assert len(found.differences) == len(state())
    assert found.bytes_read == 2 * found.target.parameters["embed.weight"].size_bytes + 2 * sum(
        item.size_bytes for name, item in found.target.parameters.items() if name != "embed.weight"
    )


def test_each_change_is_told_from_the_others(compare) -> None:
    target, reference = state(), state()
    target["layers.0.weight"][2, 3] += 0.5
    target["new"] = torch.ones(5)
    reference["gone"] = torch.zeros(5)
    target["moved.here"] = target.pop("layers.1.weight")
    target["layers.0.bias"] = target["layers.0.bias"].float()
    target["embed.weight"] = torch.cat([target["embed.weight"], torch.zeros(1, 4)])
    found = compare(target, reference)
    assert changes(found) == {
        "layers.0.weight": "changed",
        "new": "added",
        "gone": "removed",
        "moved.here": "renamed",
        "layers.0.bias": "dtype",
        "embed.weight": "shape",
        "layers.1.steps": "equal",
        "layers.1.mask": "equal",
    }
    assert not found.is_equal
    assert found.counts[Change.RENAMED] == 1
    renamed = next(each for each in found.differences if each.change is Change.RENAMED)
    assert renamed.pair.reference.name == "layers.1.weight"
    (worst,) = found.worst()
    assert worst.metrics.unequal == 1
    assert worst.metrics.max_abs_index == 2 * 6 + 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_metrics_agree_with_numpy_over_several_pieces(compare, dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(1201, 1003, generator=generator).to(dtype)
    b = (a.double() + 1e-2 * torch.randn(1201, 1003, generator=generator).double()).to(dtype)
    found = compare({"w": a}, {"w": b})
    tree = parameters_json(found)["w"]
    n, r = a.double().numpy(), b.double().numpy()
    assert tree["l2"] == pytest.approx(np.linalg.norm(n - r), rel=1e-9)
    cosine = (n * r).sum() / np.linalg.norm(n) / np.linalg.norm(r)
    assert tree["cos"] == pytest.approx(cosine, rel=1e-12)
    assert tree["max_abs_err"] == np.abs(n - r).max()
    place = np.unravel_index(np.abs(n - r).argmax(), n.shape)
    assert tree["max_abs_index"] == list(place)
    assert tree["max_abs_target"] == n[place]
    assert tree["max_abs_reference"] == r[place]
    assert tree["unequal"] == (n != r).sum()
    assert tree["mean_abs_err"] == pytest.approx(np.abs(n - r).mean(), rel=1e-9)
    assert (tree["numel"], tree["shape"]) == (a.numel(), [1201, 1003])


def test_the_documented_rules_for_zeros_and_shapes(compare) -> None:
    zero, one = torch.zeros(2, 3), torch.ones(2, 3)
    target = {"both": zero, "first": zero, "second": one, "shape": one}
    reference = {"both": zero, "first": one, "second": zero, "shape": torch.ones(3, 2)}
    tree = parameters_json(compare(target, reference))
    assert tree["both"]["cos"] == 1.0
    assert tree["first"]["cos"] is None
    assert tree["second"]["cos"] is None
    assert tree["second"]["l2"] == pytest.approx(math.sqrt(6))
    assert tree["shape"]["l2"] is None
    assert tree["shape"]["shape"] == [[2, 3], [3, 2]]


def test_values_within_a_tolerance_are_close_and_no_difference(compare) -> None:
    target = {"w": torch.tensor([1.0, 2.0]), "v": torch.tensor([1.0])}
    reference = {"w": torch.tensor([1.001, 2.0]), "v": torch.tensor([1.5])}
    found = compare(target, reference, tolerance=Tolerance(rtol=1e-2, atol=0.0))
    assert changes(found) == {"w": "close", "v": "changed"}
    assert compare(target, reference, tolerance=Tolerance(rtol=1.0, atol=0.0)).is_equal


def test_nan_equals_nan_and_nothing_else(compare) -> None:
    same = torch.tensor([1.0, math.nan, math.inf])
    found = compare(
        {"a": same, "b": same}, {"a": same.clone(), "b": torch.tensor([1.0, math.nan, -math.inf])}
    )
    assert changes(found) == {"a": "equal", "b": "nonfinite"}
    assert comparison_json(found)["parameters"]["b"]["unequal"] == 1


def test_nan_and_inf_rank_before_every_other_change(compare) -> None:
    base = {f"p{i}": torch.ones(2, 4) * (i + 1) for i in range(30)}
    target = {name: tensor + 1.0 for name, tensor in base.items()}
    target["p13"] = base["p13"].clone()
    target["p13"][1, 2] = math.nan
    target["p14"] = base["p14"].clone()
    target["p14"][0, 1:3] = math.inf
    found = compare(target, base)
    assert [each.name for each in found.worst()[:2]] == ["p14", "p13"]
    assert changes(found)["p13"] == changes(found)["p14"] == "nonfinite"
    tree = parameters_json(found)["p13"]
    assert (tree["target_nan"], tree["reference_nan"]) == (1, 0)
    assert tree["nonfinite_index"] == [1, 2]
    lines = [line.plain for line in comparison_lines(found)]
    begin = next(i for i, line in enumerate(lines) if "NaN and Inf first" in line) + 2
    assert lines[begin].startswith("  2 Inf (0 in the reference)  first at [0, 1] p14")
    assert lines[begin + 1].startswith("  1 NaN (0 in the reference)  first at [1, 2] p13")


@pytest.mark.parametrize("coarse", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("side", ["target", "reference"])
def test_values_rounded_to_a_coarser_type_are_rounded_alike(compare, coarse, side: str) -> None:
    fine = torch.float64 if coarse is torch.float32 else torch.float32
    values = torch.randn(3000, dtype=fine) * torch.logspace(-12, 12, 3000, base=2)
    values = torch.cat([values, torch.tensor([0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8], dtype=fine)])
    rounded = {"w": values.to(coarse)}
    pair = (rounded, {"w": values}) if side == "target" else ({"w": values}, rounded)
    found = compare(*pair)
    assert changes(found) == {"w": "rounded"}
    assert found.differences[0].rounded_to == str(coarse).removeprefix("torch.")
    assert not found.is_equal
    widened = compare({"w": rounded["w"].to(fine)}, {"w": values})
    assert changes(widened) == {"w": "rounded"}
    rounded["w"] = rounded["w"].clone()
    rounded["w"][7] = torch.nextafter(rounded["w"][7:8], torch.tensor([9e9]).to(coarse))[0]
    assert changes(compare(rounded, {"w": values})) == {"w": "changed"}


def test_a_value_that_overflows_when_rounded_is_reported_as_infinite(compare) -> None:
    wide = torch.tensor([1.0, 70000.0])
    assert changes(compare({"w": wide.half()}, {"w": wide})) == {"w": "nonfinite"}


def test_a_shift_of_simple_numbers_is_no_rounding(compare) -> None:
    ones = torch.ones(40) * 3
    assert changes(compare({"w": ones + 1e-3}, {"w": ones})) == {"w": "changed"}


def test_float64_is_rounded_to_bfloat16_once_and_not_through_float32(compare) -> None:
    # A little above the middle between two bfloat16; as float32 it is the middle.
    value = torch.tensor([1 + 2**-8 + 2**-40], dtype=torch.float64)
    up = torch.tensor([1 + 2**-7]).bfloat16()
    assert changes(compare({"w": up}, {"w": value})) == {"w": "rounded"}
    assert changes(compare({"w": torch.ones(1).bfloat16()}, {"w": value})) == {"w": "changed"}


@pytest.mark.parametrize("prefix", ["module.", "state_dict.model."])
@pytest.mark.parametrize("side", ["target", "reference"])
def test_a_prefix_of_one_side_is_left_out_of_account(compare, prefix: str, side: str) -> None:
    plain, changed = state(), state()
    changed["layers.0.weight"] += 1
    longer = {prefix + name: tensor for name, tensor in changed.items()}
    found = compare(longer, plain) if side == "target" else compare(plain, longer)
    assert sorted(changes(found).values()) == ["changed"] + ["equal"] * 5
    assert prefix in found.notes[0]


def test_models_with_nothing_in_common_are_not_forced_together(compare) -> None:
    found = compare({"a.w": torch.ones(2), "b.v": torch.ones(3)}, {"c.x": torch.zeros(4)})
    assert changes(found) == {"a.w": "added", "b.v": "added", "c.x": "removed"}


def test_equal_contents_are_paired_once_each(compare) -> None:
    ones = {f"old.{i}": torch.ones(3) for i in range(3)}
    found = compare({f"new.{i}": torch.ones(3) for i in range(2)}, ones)
    assert sorted(changes(found).values()) == ["removed", "renamed", "renamed"]
    partners = [each.pair.reference.name for each in found.differences if each.pair.is_renamed]
    assert len(set(partners)) == 2
    unsearched = compare({"new": torch.ones(3)}, ones, find_renamed=False)
    assert changes(unsearched)["new"] == "added"


def test_only_some_parameters_take_part(compare) -> None:
    found = compare(state(), state(1), only=["*.bias", "embed*"])
    assert set(changes(found)) == {"layers.0.bias", "embed.weight"}
    with pytest.raises(UsageError, match="no parameter fits"):
        compare(state(), state(), only=["nothing*"])


def test_strided_tensors_compare_by_their_elements(tmp_path: Path) -> None:
    base = torch.randn(700, 900)
    torch.save({"w": base.t()}, tmp_path / "t.pt")
    torch.save({"w": base.t().contiguous()}, tmp_path / "r.pt")
    assert compare_checkpoints(tmp_path / "t.pt", tmp_path / "r.pt").is_equal


def test_packed_types_are_compared_by_their_bytes(tmp_path: Path) -> None:
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no packed type")
    raw = torch.arange(8, dtype=torch.uint8)
    other = raw.clone()
    other[3] = 99
    for name, values in (("t", raw), ("r", other), ("same", raw)):
        torch.save({"w": values.view(torch.float4_e2m1fn_x2)}, tmp_path / f"{name}.pt")
    found = compare_checkpoints(tmp_path / "t.pt", tmp_path / "r.pt")
    assert changes(found) == {"w": "changed"}
    assert compare_checkpoints(tmp_path / "t.pt", tmp_path / "same.pt").is_equal


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux")
def test_memory_does_not_grow_with_the_parameters(tmp_path: Path) -> None:
    def peak_kb(elements: int) -> int:
        header = b'{"w":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}' % (
            elements,
            elements * 4,
        )
        path = tmp_path / f"{elements}.safetensors"
        with path.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + elements * 4)
        assert compare_checkpoints(path, path).is_equal
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = peak_kb(4 << 20)
    after = peak_kb(64 << 20)  # 256 MiB a side
    assert after - before < 64 << 10


def test_progress_reaches_the_end(compare) -> None:
    seen: list[tuple[int, int]] = []
    compare(state(), state(), progress=lambda done, total: seen.append((done, total)))
    assert len(seen) == len(state())
    assert seen[-1][0] == seen[-1][1] > 0


def test_files_that_were_written_anew_are_read_anew(tmp_path: Path) -> None:
    target = write_safetensors(tmp_path / "a.safetensors", {"x": torch.arange(6.0)})
    reference = tmp_path / "b.safetensors"
    for values, is_same in ((torch.arange(6.0), True), (torch.arange(6.0).square(), False)):
        write_safetensors(reference, {"y": values})
        found = compare_checkpoints(target, reference)
        assert (found.counts[Change.RENAMED] == 1) is is_same
