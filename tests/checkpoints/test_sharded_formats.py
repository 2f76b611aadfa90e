# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in parts: put together they equal the whole, however they were cut."""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from builders.checkpoints import bits, write_mindspore, write_safetensors  # noqa: E402
from builders.protobuf import block, number  # noqa: E402
from builders.sharded import write_deepspeed, write_distributed  # noqa: E402
from msprobe.checkpoints.comparing import compare_checkpoints  # noqa: E402
from msprobe.checkpoints.opening import open_checkpoint  # noqa: E402
from msprobe.errors import CheckpointFormatError  # noqa: E402

pytestmark = pytest.mark.torch


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a.weight": (5, 7), "a.bias": (5,), "b.weight": (3, 4, 6), "scale": ()}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def check(checkpoint: Any, expected: dict[str, torch.Tensor], prefix: str = "") -> None:
    for name, tensor in expected.items():
        found = checkpoint.parameters[prefix + name]
        assert found.shape == tuple(tensor.shape), name
        assert found.array().tobytes() == bits(tensor), name
        assert b"".join(p.tobytes() for p in found.pieces(elements=5)) == bits(tensor), name


@pytest.mark.parametrize("cuts", [(1,), (2,), (3, 2), (1, 3), (2, 2, 4), (5,)], ids=str)
def test_blocks_of_a_distributed_checkpoint_are_joined(tmp_path: Path, cuts: tuple) -> None:
    tensors = weights() | {"half": torch.randn(9, 2).bfloat16(), "none": torch.zeros(0, 4)}
    values = {"epoch": 3, "extra": {"names": ["x"], "rng": torch.ones(2)}}
    checkpoint = open_checkpoint(write_distributed(tmp_path / "d", tensors, values, cuts=cuts))
    check(checkpoint, tensors)
    assert checkpoint.values["epoch"].content == 3
    assert checkpoint.parameters["extra.rng"].array().tolist() == [1.0, 1.0]
    assert not checkpoint.unread


def test_what_torch_saves_distributed_equals_what_it_saves_whole(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    tree = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    tree["nested"] = [1.5, {"a": torch.ones(2)}]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(tree, checkpoint_id=tmp_path / "d")
    torch.save(tree, tmp_path / "x.pt")
    found = compare_checkpoints(tmp_path / "d", tmp_path / "x.pt")
    assert found.is_equal
    assert len(found.differences) == 4 + 3 + 4 * 3 + 1
    tree["epoch"] = 4
    torch.save(tree, tmp_path / "x.pt")
    found = compare_checkpoints(tmp_path / "d", tmp_path / "x.pt")
    assert [each.name for each in found.values if each.change.is_difference] == ["epoch"]


def fsdp_rank(rank: int, ranks: int, folder: str) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard

    warnings.simplefilter("ignore")
    store = dist.FileStore(f"{folder}.store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(states, checkpoint_id=folder)
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads may abort the interpreter's own end; that is not what is tested


@pytest.mark.slow
def test_fsdp_of_two_world_sizes_is_equal(tmp_path: Path) -> None:
    for ranks in (1, 2):
        torch.multiprocessing.spawn(fsdp_rank, (ranks, str(tmp_path / f"d{ranks}")), nprocs=ranks)
    assert len(list((tmp_path / "d2").glob("*.distcp"))) == 2
    found = compare_checkpoints(tmp_path / "d1", tmp_path / "d2")
    assert found.is_equal
    assert "optimizer.state.0.weight.exp_avg" in {each.name for each in found.differences}


def test_folders_of_distributed_checkpoints_are_one(tmp_path: Path) -> None:
    write_distributed(tmp_path / "x" / "model_0", weights(), cuts=(2,))
    write_distributed(tmp_path / "x" / "optimizer_0", {"m": torch.ones(2)})
    assert set(open_checkpoint(tmp_path / "x").parameters) == {*weights(), "m"}


def test_megatron_in_the_distributed_format_equals_its_other_format(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    layers = [torch.randn(6, 4, generator=generator) for _ in range(3)]
    embedding = torch.randn(8, 4, generator=generator)
    arguments = argparse.Namespace(tensor_model_parallel_size=2, num_layers=3, lr=0.1)
    name = "decoder.layers.{}self_attention.linear_proj.bias"
    stacked = {
        name.format(""): torch.stack([layer[:, 0] for layer in layers]),
        "embedding.word_embeddings.weight": embedding,
    }
    new = write_distributed(tmp_path / "new" / "iter_0000007", stacked, cuts=(2, 2))
    torch.save({"args": arguments, "iteration": 7}, new / "common.pt")
    (tmp_path / "new" / "latest_checkpointed_iteration.txt").write_text("7")
    old = tmp_path / "old" / "iter_0000007" / "mp_rank_00"
    old.mkdir(parents=True)
    model = {name.format(f"{i}."): layer[:, 0].clone() for i, layer in enumerate(layers)}
    model["embedding.word_embeddings.weight"] = embedding
    arguments.tensor_model_parallel_size = 1
    torch.save({"args": arguments, "iteration": 7, "model": model}, old / "model_optim_rng.pt")
    found = compare_checkpoints(tmp_path / "new", old.parent)
    assert found.is_equal
    assert len(found.differences) == 4


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_partitions_of_zero_are_joined(tmp_path: Path, stage: int, ranks: int, groups: int) -> None:
    folder = write_deepspeed(
        tmp_path / "z", weights(), stage=stage, ranks=ranks, groups=groups,
        buffers={"table": torch.arange(3)},
    )  # fmt: skip
    checkpoint = open_checkpoint(folder)
    check(checkpoint, weights() | {"table": torch.arange(3)})
    for name, tensor in weights().items():
        found = checkpoint.parameters[f"optimizer.state.{name}.exp_avg"]
        assert found.array().tobytes() == bits(tensor * 0.1)
    assert checkpoint.values["optimizer.param_groups.0.lr"].content == 1e-3
    assert checkpoint.values["lr_scheduler.last_epoch"].content == 5
    assert not checkpoint.contradictions


def test_zero_of_other_world_sizes_and_stages_is_equal(tmp_path: Path) -> None:
    base = write_deepspeed(tmp_path / "base", weights())
    for options in ({"ranks": 4}, {"ranks": 3, "stage": 3}, {"ranks": 1}):
        other = write_deepspeed(tmp_path / str(options), weights(), **options)
        assert compare_checkpoints(other, base / "global_step100").is_equal
    changed = {name: tensor.clone() for name, tensor in weights().items()}
    changed["b.weight"][2, 3, 5] += 1
    other = write_deepspeed(tmp_path / "c", changed, ranks=3, moments=weights())
    found = compare_checkpoints(
        other, write_deepspeed(tmp_path / "d", weights(), moments=weights())
    )
    (worst,) = found.worst()
    assert (worst.name, worst.metrics.max_abs_index) == ("b.weight", 3 * 24 - 1)


def test_zero_equals_the_whole_weights(tmp_path: Path) -> None:
    folder = write_deepspeed(tmp_path / "z", weights(), ranks=3)
    whole = write_safetensors(tmp_path / "x.safetensors", weights())
    found = compare_checkpoints(folder, whole, only=list(weights()))
    assert found.is_equal
    assert len(found.differences) == len(weights())


def test_a_module_that_is_not_the_rounded_parameter_is_a_contradiction(tmp_path: Path) -> None:
    folder = write_deepspeed(tmp_path / "z", weights())
    path = folder / "global_step100" / "mp_rank_00_model_states.pt"
    tree = torch.load(path, weights_only=False)
    tree["module"]["a.bias"][2] += 1
    torch.save(tree, path)
    (found,) = open_checkpoint(folder).contradictions
    assert found.name == "a.bias"


@pytest.mark.parametrize(
    "gone", ["bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "global_step100"]
)
def test_a_missing_partition_is_refused(tmp_path: Path, gone: str) -> None:
    folder = write_deepspeed(tmp_path / "z", weights(), ranks=3)
    step = folder / "global_step100"
    shutil.rmtree(step) if gone == step.name else (step / gone).unlink()
    with pytest.raises(CheckpointFormatError, match="is missing"):
        open_checkpoint(folder)


def test_partitions_that_do_not_fit_the_shapes_are_refused(tmp_path: Path) -> None:
    folder = write_deepspeed(tmp_path / "z", weights())
    path = folder / "global_step100" / "mp_rank_00_model_states.pt"
    tree = torch.load(path, weights_only=False)
    tree["param_shapes"][0]["a.weight"] = torch.Size([500, 7])
    torch.save(tree, path)
    with pytest.raises(CheckpointFormatError, match="do not fit"):
        open_checkpoint(folder)


@pytest.mark.parametrize("word", ["../x", "/etc", "", "gone"])
def test_a_latest_step_that_is_not_there(tmp_path: Path, word: str) -> None:
    (tmp_path / "latest").write_text(word)
    with pytest.raises(CheckpointFormatError):
        open_checkpoint(tmp_path)


class Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


def test_hostile_metadata_is_not_run(tmp_path: Path) -> None:
    folder = write_distributed(tmp_path / "d", weights())
    (folder / ".metadata").write_bytes(pickle.dumps(Attack(tmp_path / "executed")))
    with pytest.raises(CheckpointFormatError, match="metadata"):
        open_checkpoint(folder)
    assert not (tmp_path / "executed").exists()


def test_hostile_values_of_a_distributed_checkpoint_are_not_run(tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    folder = write_distributed(tmp_path / "d", weights(), {"evil": Attack(proof)})
    assert "evil.0" in open_checkpoint(folder).values
    assert not proof.exists()


DAMAGES = (
    "part gone", "part cut", "part junk",
    "metadata gone", "metadata cut", "metadata junk", "leaves",
)  # fmt: skip


def damaged(folder: Path, how: str) -> None:
    part, metadata = folder / "__0_0.distcp", folder / ".metadata"
    content = metadata.read_bytes()
    match how:
        case "part gone":
            part.unlink()
        case "part cut":
            part.write_bytes(part.read_bytes()[:900])
        case "part junk":
            part.write_bytes(bytes(len(part.read_bytes())))
        case "metadata gone":
            metadata.unlink()
        case "metadata cut":
            metadata.write_bytes(content[: len(content) // 2])
        case "metadata junk":
            metadata.write_bytes(b"<html>404</html>")
        case "leaves":
            metadata.write_bytes(content.replace(b"__0_0.distcp", b"../../passwd"))


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_distributed_checkpoints_are_refused(tmp_path: Path, how: str) -> None:
    folder = write_distributed(tmp_path / "d", weights(), cuts=(2,))
    damaged(folder, how)
    with pytest.raises(CheckpointFormatError) as caught:
        open_checkpoint(folder)
    assert str(caught.value).startswith(str(folder))


def test_a_part_alone_is_refused(tmp_path: Path) -> None:
    folder = write_distributed(tmp_path / "d", weights())
    with pytest.raises(CheckpointFormatError, match="name its folder"):
        open_checkpoint(folder / "__0_0.distcp")


def test_blocks_that_overlap_or_leave_holes_are_refused(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import metadata as dcp

    folder = write_distributed(tmp_path / "d", {"w": torch.randn(4, 4)}, cuts=(2, 2))
    tree = pickle.loads((folder / ".metadata").read_bytes())
    chunks = tree.state_dict_metadata["w"].chunks
    for broken in (chunks[:3], [chunks[0], chunks[0], *chunks[2:]]):
        tree.state_dict_metadata["w"].chunks = broken
        (folder / ".metadata").write_bytes(pickle.dumps(tree))
        with pytest.raises(CheckpointFormatError, match=r"do not make up \[4, 4\]"):
            open_checkpoint(folder)
    tree.state_dict_metadata["w"] = dcp.TensorStorageMetadata(
        dcp.TensorProperties(dtype=torch.float64), torch.Size([4, 4]), chunks
    )
    (folder / ".metadata").write_bytes(pickle.dumps(tree))
    with pytest.raises(CheckpointFormatError, match=r"not as \.metadata says"):
        open_checkpoint(folder)


def strategy_entry(name: str, devices: list[int], axes: list[int]) -> bytes:
    def dims(sizes: list[int]) -> bytes:
        return b"".join(number(1, size & ((1 << 64) - 1)) for size in sizes)

    layouts = block(1, dims(devices)) + block(2, dims(axes))
    layouts += number(5, 0) + number(6, 0) + number(7, 0)
    return block(3, block(1, name.encode()) + block(2, layouts))


def write_mindspore_ranks(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """Cut the rows of "a.weight" over axis 1 and its columns over axis 0 of 2 x 2 devices."""
    for rank in range(4):
        parts = dict(tensors)
        rows, columns = tensors["a.weight"].chunk(2)[rank // 2], rank % 2
        parts["a.weight"] = rows.chunk(2, dim=1)[columns].contiguous()
        (folder / f"rank_{rank}").mkdir(parents=True)
        write_mindspore(folder / f"rank_{rank}" / "net-1_10.ckpt", parts)
    strategy = number(1, 0) + strategy_entry("a.weight", [2, 2], [1, 0])
    strategy += strategy_entry("a.bias", [2, 2], [-1])
    (folder / "strategy.ckpt").write_bytes(strategy)
    return folder


def even_weights() -> dict[str, torch.Tensor]:
    return {"a.weight": torch.arange(24.0).reshape(4, 6), "a.bias": torch.arange(4.0)}


def test_ranks_of_mindspore_are_joined_by_their_strategy(tmp_path: Path) -> None:
    folder = write_mindspore_ranks(tmp_path / "m", even_weights())
    check(open_checkpoint(folder), even_weights())
    whole = write_mindspore(tmp_path / "x.ckpt", even_weights())
    assert compare_checkpoints(folder, whole).is_equal


def test_ranks_of_mindspore_that_contradict_each_other_or_are_missing(tmp_path: Path) -> None:
    folder = write_mindspore_ranks(tmp_path / "m", even_weights())
    parts = {"a.weight": even_weights()["a.weight"][:2, 3:].contiguous(), "a.bias": torch.ones(4)}
    write_mindspore(folder / "rank_1" / "net-1_10.ckpt", parts)
    (found,) = open_checkpoint(folder).contradictions
    assert (found.name, "rank_1" in found.problem) == ("a.bias", True)
    shutil.rmtree(folder / "rank_2")
    with pytest.raises(CheckpointFormatError, match=r"'a\.weight' do not make up \[4, 6\]"):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", [b"\x08", b"\x08\x00\x1a\x7fxx", b"\x08\x00\x1a\x00"])
def test_a_damaged_strategy_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = write_mindspore_ranks(tmp_path / "m", even_weights())
    (folder / "strategy.ckpt").write_bytes(content)
    with pytest.raises(CheckpointFormatError, match=r"strategy\.ckpt: is no strategy"):
        open_checkpoint(folder)


def test_numbered_shards_without_an_index_are_all_there(tmp_path: Path) -> None:
    for count, name in enumerate(weights(), 1):
        file = tmp_path / f"model-{count:05d}-of-00004.safetensors"
        write_safetensors(file, {name: weights()[name]})
    check(open_checkpoint(tmp_path), weights())
    (tmp_path / "model-00003-of-00004.safetensors").unlink()
    with pytest.raises(
        CheckpointFormatError, match=r"model-00003-of-00004\.safetensors: is missing"
    ):
        open_checkpoint(tmp_path)


@pytest.mark.slow  # to import transformers takes most of it
def test_shards_of_transformers_are_one_model(tmp_path: Path, monkeypatch) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    model = transformers.BertModel(config)
    many, few = tmp_path / "many", tmp_path / "few"
    model.save_pretrained(many, max_shard_size="8KB")
    model.save_pretrained(few, max_shard_size="20KB")
    assert len(list(many.glob("*.safetensors"))) > len(list(few.glob("*.safetensors"))) > 1
    assert compare_checkpoints(many, few).is_equal
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight[3, 30] += 1e-3
    model.save_pretrained(many, max_shard_size="8KB")
    found = compare_checkpoints(many, few).ranked()
    assert found == [("changed", "encoder.layer.1.output.dense.weight")]
    sorted(many.glob("*.safetensors"))[1].unlink()
    with pytest.raises(CheckpointFormatError, match="is missing"):
        open_checkpoint(many)
