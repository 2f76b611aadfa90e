# SPDX-License-Identifier: Apache-2.0
"""A model cut over ranks and put together again equals the model that was cut."""

from __future__ import annotations

import argparse
import itertools
import shutil
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from builders.checkpoints import bits  # noqa: E402
from msprobe.checkpoints.comparing import compare_checkpoints  # noqa: E402
from msprobe.checkpoints.opening import open_checkpoint  # noqa: E402
from msprobe.cli import main  # noqa: E402
from msprobe.errors import CheckpointFormatError  # noqa: E402

pytestmark = pytest.mark.torch

LAYERS, HIDDEN, FFN, EXPERTS = 4, 8, 16, 4


def whole_model(*, experts: int = 0) -> dict[str, torch.Tensor]:
    """Return a model in the spelling of megatron.core."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    model = {"embedding.word_embeddings.weight": random(32, HIDDEN)}
    for layer in range(LAYERS):
        begin = f"decoder.layers.{layer}."
        model |= {
            begin + "self_attention.linear_qkv.weight": random(3 * HIDDEN, HIDDEN),
            begin + "self_attention.linear_qkv.bias": random(3 * HIDDEN),
            begin + "self_attention.linear_qkv.layer_norm_weight": random(HIDDEN),
            begin + "self_attention.linear_proj.weight": random(HIDDEN, HIDDEN),
            begin + "self_attention.linear_proj.bias": random(HIDDEN),
        }
        for middle in [f"experts.local_experts.{i}." for i in range(experts)] or [""]:
            model |= {
                f"{begin}mlp.{middle}linear_fc1.weight": random(2 * FFN, HIDDEN),
                f"{begin}mlp.{middle}linear_fc2.weight": random(HIDDEN, FFN),
            }
    return model | {
        "decoder.final_layernorm.weight": random(HIDDEN),
        "output_layer.weight": random(32, HIDDEN),
    }


def part_of(name: str, tensor: torch.Tensor, tp: int, tp_size: int, gated: bool) -> torch.Tensor:
    """Cut as Megatron's column- and row-parallel layers do (written down independently)."""
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        return tensor.chunk(tp_size, dim=1)[tp].contiguous()
    if name.endswith("linear_fc1.weight") and gated:
        gate, value = tensor.chunk(2)
        return torch.cat([gate.chunk(tp_size)[tp], value.chunk(tp_size)[tp]])
    rows = ("qkv.weight", "qkv.bias", "fc1.weight", "word_embeddings.weight", "output_layer.weight")
    return tensor.chunk(tp_size)[tp].contiguous() if name.endswith(rows) else tensor


def local_name(name: str, place: tuple[int, int], grid: tuple[int, int]) -> str | None:
    """Return a parameter's name on a (virtual) pipeline stage; None if it is not there."""
    (p, v), (pp, vpp) = place, grid
    if "layers." not in name:
        home = (0, 0) if "embedding" in name else (pp - 1, vpp - 1)
        return name if home == place else None
    share = LAYERS // (pp * vpp)
    number = int(name.split(".")[2]) - (v * pp + p) * share
    parts = name.split(".")
    parts[2] = str(number)
    return ".".join(parts) if 0 <= number < share else None


def expert_name(name: str, e: int, share: int) -> str | None:
    """Return a parameter's name in an expert group; None if it belongs to another one."""
    parts = name.split(".")
    if "local_experts" not in parts:
        return name
    at = parts.index("local_experts") + 1
    number = int(parts[at]) - e * share
    parts[at] = str(number)
    return ".".join(parts) if 0 <= number < share else None


def cut(
    folder: Path,
    *,
    tp: int = 1,
    pp: int = 1,
    vpp: int = 1,
    ep: int = 1,
    gated: bool = False,
    with_args: bool = True,
    experts: int = 0,
) -> Path:
    """Write the model as Megatron-LM does for this grid of ranks."""
    model = whole_model(experts=experts)
    for t, p, e in itertools.product(range(tp), range(pp), range(ep)):
        tree: dict = {"iteration": 100}
        if with_args:
            tree["args"] = argparse.Namespace(
                tensor_model_parallel_size=tp,
                pipeline_model_parallel_size=pp,
                expert_model_parallel_size=ep,
                num_layers=LAYERS,
                rank=t,
                swiglu=gated,
                lr=0.1,
            )
        for v in range(vpp):
            part = tree["model" if vpp == 1 else f"model{v}"] = {}
            for name, tensor in model.items():
                local = local_name(name, (p, v), (pp, vpp))
                local = local and expert_name(local, e, experts // ep)
                if local is not None:
                    part[local] = part_of(name, tensor, t, tp, gated)
        rank = (
            f"mp_rank_{t:02d}" + (f"_{p:03d}" if pp > 1 else "") + (f"_{e:03d}" if ep > 1 else "")
        )
        target = folder / "iter_0000100" / rank
        target.mkdir(parents=True)
        torch.save(tree, target / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("100\n")
    return folder


@pytest.mark.parametrize(
    "grid",
    [
        {},
        {"tp": 2},
        {"pp": 2},
        {"tp": 2, "pp": 2},
        {"tp": 4, "pp": 2, "vpp": 2},
        {"pp": 4, "with_args": False},
        {"tp": 2, "gated": True},
        {"ep": 2, "experts": 4},
        {"ep": 2, "experts": 4, "with_args": False},
        {"tp": 2, "pp": 2, "ep": 2, "experts": 4},
    ],
    ids=str,
)
def test_the_parts_are_put_together(tmp_path: Path, grid: dict) -> None:
    expected = whole_model(experts=grid.get("experts", 0))
    checkpoint = open_checkpoint(cut(tmp_path / "m", **grid))
    assert set(checkpoint.parameters) == set(expected)
    for name, tensor in expected.items():
        found = checkpoint.parameters[name]
        assert found.shape == tuple(tensor.shape), name
        assert found.array().tobytes() == bits(tensor), name
        assert b"".join(p.tobytes() for p in found.pieces(elements=13)) == bits(tensor), name
    assert checkpoint.notes == ()
    sizes = {axis: grid.get(axis, 1) for axis in ("tp", "pp", "ep")}
    assert checkpoint.kind == "Megatron, TP {tp} PP {pp} EP {ep}".format(**sizes)


def test_two_grids_of_one_model_are_equal(tmp_path: Path) -> None:
    one, other = cut(tmp_path / "a", tp=4), cut(tmp_path / "b", pp=4)
    found = compare_checkpoints(one, other / "iter_0000100")
    assert found.is_equal
    assert len(found.differences) == len(whole_model())


def test_old_names_are_those_of_megatron_core(tmp_path: Path) -> None:
    language_model = {
        "embedding": {"word_embeddings": {"weight": torch.ones(4, 2)}},
        "encoder": {
            "layers.0.input_norm.weight": torch.ones(2),
            "layers.0.self_attention.query_key_value.weight": torch.ones(6, 2),
            "layers.0.self_attention.dense.weight": torch.ones(2, 2),
            "layers.0.post_attention_layernorm.weight": torch.ones(2),
            "layers.0.mlp.dense_h_to_4h.weight": torch.ones(8, 2),
            "layers.0.mlp.dense_4h_to_h.weight": torch.ones(2, 8),
            "final_norm.weight": torch.ones(2),
        },
        "output_layer": {"weight": torch.ones(4, 2)},
    }
    folder = tmp_path / "iter_0000001" / "mp_rank_00"
    folder.mkdir(parents=True)
    torch.save({"model": {"language_model": language_model}}, folder / "model_optim_rng.pt")
    assert set(open_checkpoint(folder.parent).parameters) == {
        "embedding.word_embeddings.weight",
        "decoder.layers.0.input_layernorm.weight",
        "decoder.layers.0.self_attention.linear_qkv.weight",
        "decoder.layers.0.self_attention.linear_proj.weight",
        "decoder.layers.0.pre_mlp_layernorm.weight",
        "decoder.layers.0.mlp.linear_fc1.weight",
        "decoder.layers.0.mlp.linear_fc2.weight",
        "decoder.final_layernorm.weight",
        "output_layer.weight",
    }


def change_rank(folder: Path, rank: str, change) -> None:
    path = folder / "iter_0000100" / rank / "model_optim_rng.pt"
    tree = torch.load(path, weights_only=False)
    change(tree)
    torch.save(tree, path)


def test_replicas_that_contradict_each_other_are_a_difference(tmp_path: Path) -> None:
    def diverge(tree: dict) -> None:
        tree["model"]["decoder.final_layernorm.weight"][0] += 1

    one, other = cut(tmp_path / "a", tp=2), cut(tmp_path / "b")
    change_rank(one, "mp_rank_01", diverge)
    found = compare_checkpoints(one, other)
    (finding,) = found.contradictions
    assert (finding.side, finding.name) == ("target", "decoder.final_layernorm.weight")
    assert "mp_rank_01" in finding.problem
    assert found.counts["equal"] == len(whole_model())
    assert not found.is_equal
    assert main(["compare-ckpt", str(one), str(other), "-q", "--exit-code"]) == 1


@pytest.mark.parametrize(
    ("grid", "gone"),
    [
        ({"tp": 2}, "mp_rank_00"),
        ({"tp": 2}, "mp_rank_01"),
        ({"pp": 4}, "mp_rank_00_001"),
        ({"pp": 4}, "mp_rank_00_003"),
        ({"tp": 2, "pp": 2}, "mp_rank_01_001"),
        ({"ep": 2, "experts": 4}, "mp_rank_00_001"),
    ],
    ids=str,
)
def test_a_missing_part_is_refused(tmp_path: Path, grid: dict, gone: str, capsys) -> None:
    whole = cut(tmp_path / "whole", **grid)
    folder = cut(tmp_path / "m", **grid)
    shutil.rmtree(folder / "iter_0000100" / gone)
    named = "expert group 1" if "ep" in grid else gone
    with pytest.raises(CheckpointFormatError, match=f"{named} is missing"):
        open_checkpoint(folder)
    assert main(["compare-ckpt", str(folder), str(whole), "--exit-code"]) == 2
    assert str(folder) in capsys.readouterr().err


def test_a_part_that_lacks_layers_is_refused(tmp_path: Path) -> None:
    def drop(tree: dict) -> None:
        model = tree["model"]
        for name in [name for name in model if ".layers.1." in name]:
            del model[name]

    folder = cut(tmp_path / "m", pp=2)
    change_rank(folder, "mp_rank_00_001", drop)
    with pytest.raises(CheckpointFormatError, match="holds 3 layers, num_layers is 4"):
        open_checkpoint(folder)


def test_entries_outside_the_model_are_compared(tmp_path: Path) -> None:
    def train(rank: int):
        def change(tree: dict) -> None:
            tree["optimizer"] = {"exp_avg": torch.full((3,), float(rank))}
            tree["opt_param_scheduler"] = {"num_steps": 7}

        return change

    for name in ("a", "b"):
        for rank in (0, 1):
            change_rank(cut(tmp_path / name, tp=2) if not rank else tmp_path / name,
                        f"mp_rank_{rank:02d}", train(rank))  # fmt: skip
    assert compare_checkpoints(tmp_path / "a", tmp_path / "b").is_equal

    def later(tree: dict) -> None:
        tree["optimizer"]["exp_avg"] += 1
        tree["opt_param_scheduler"]["num_steps"] = 8
        tree["args"].lr = 0.2

    for rank in (0, 1):
        change_rank(tmp_path / "b", f"mp_rank_{rank:02d}", later)
    found = compare_checkpoints(tmp_path / "b", tmp_path / "a")
    assert {each.name for each in found.values if each.change.is_difference} == {
        "opt_param_scheduler.num_steps",
        "args.lr",
    }
    assert [each.name for each in found.worst()] == [
        "mp_rank_00.optimizer.exp_avg",
        "mp_rank_01.optimizer.exp_avg",
    ]
    found = compare_checkpoints(tmp_path / "a", cut(tmp_path / "whole"))
    assert [each.name for each in found.uncompared] == [
        "mp_rank_00.optimizer.exp_avg",
        "mp_rank_01.optimizer.exp_avg",
    ]


def test_the_file_of_a_distributed_optimizer_is_compared(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = cut(tmp_path / name, tp=2) / "iter_0000100" / "mp_rank_01"
        torch.save({0: {"exp_avg": torch.full((3,), ord(name))}}, folder / "distrib_optim.pt")
    found = compare_checkpoints(tmp_path / "a", tmp_path / "b")
    assert [each.name for each in found.worst()] == ["mp_rank_01.distrib_optim.0.exp_avg"]


def test_a_damaged_rank_is_refused(tmp_path: Path) -> None:
    folder = cut(tmp_path / "m", tp=2)
    damaged = folder / "iter_0000100" / "mp_rank_00" / "model_optim_rng.pt"
    with zipfile.ZipFile(damaged, "w") as archive:
        archive.writestr("other.pkl", b"")
    with pytest.raises(CheckpointFormatError, match=r"holds 0 data\.pkl entries") as refusal:
        open_checkpoint(folder)
    assert refusal.value.path == damaged


@pytest.mark.parametrize("word", ["7", "../../etc", "", "release"])
def test_a_latest_checkpoint_that_is_not_there(tmp_path: Path, word: str) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text(word)
    with pytest.raises(CheckpointFormatError):
        open_checkpoint(tmp_path)
