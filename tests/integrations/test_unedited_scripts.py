# SPDX-License-Identifier: Apache-2.0
"""`msprobe run` on scripts that libraries ship, and on scripts after their documentation.

With and without msprobe a script ends with the same code, prints the same and writes the same
weights, in one process and with two ranks. MSPROBE_TEST_ALL_SCRIPTS=1 tries every script.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from builders.tiny_language_model import write_data, write_model
from msprobe import open_dump

WRITTEN = Path(__file__).parent / "scripts"
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "ACCELERATE_USE_CPU": "true",
    "CUDA_VISIBLE_DEVICES": "",
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_WEIGHTS = {".safetensors", ".pt", ".ckpt", ".bin"}
# Lightning's checkpoints hold the path of the folder; its script writes its weights beside them.
_OTHER = {"dump", "checkpoints"}


@dataclass(frozen=True)
class Script:
    """A training script.

    Attributes:
        library: the package that it needs.
        path: in the package if that ships it, else in the folder `scripts` of these tests.
        kind: of TRL: the data set that it wants.
        options: further arguments.
        recorded: the smallest number of recorded steps that is right.
        environment: further variables.
        layer: a layer that each step calls twice.
        launcher: the module that starts two ranks, and its arguments.
    """

    library: str
    path: str
    kind: str = ""
    options: tuple[str, ...] = ()
    recorded: int = 3
    environment: tuple[tuple[str, str], ...] = ()
    layer: str = ""
    launcher: tuple[str, ...] = ("torch.distributed.run", "--nproc-per-node", "2")

    def found(self) -> Path:
        if "/" not in self.path:
            return WRITTEN / self.path
        spec = importlib.util.find_spec(self.library)
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).parents[1] / self.path


_ACCELERATE = "accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1"
_DEEPSPEED = Script("deepspeed", "deepspeed_engine.py", layer="Module.module.0.Linear.forward.")
SCRIPTS = {
    "accelerate_script": Script("accelerate", "accelerate/test_utils/scripts/test_script.py"),
    "accelerate_sync": Script(
        "accelerate",
        "accelerate/test_utils/scripts/test_sync.py",
        launcher=(*_ACCELERATE.split(), "--mixed_precision", "no", "--dynamo_backend", "no"),
    ),
    "trl_sft": Script("trl", "trl/scripts/sft.py", "sft"),
    "trl_dpo": Script("trl", "trl/scripts/dpo.py", "dpo"),
    "trl_reward": Script("trl", "trl/scripts/reward.py", "reward"),
    "trl_kto": Script("trl", "trl/scripts/kto.py", "kto"),
    "trl_lora": Script("trl", "trl/scripts/sft.py", "sft", ("--use_peft", "--lora_r", "4")),
    "peft": Script("peft", "peft_trainer.py"),
    "lightning": Script("lightning", "lightning_autoencoder.py"),
    "diffusers": Script("diffusers", "diffusers_unconditional.py"),
    "timm": Script("timm", "timm_train.py"),
    "deepspeed": _DEEPSPEED,
    **{
        f"deepspeed_zero{stage}": replace(_DEEPSPEED, environment=(("ZERO", stage),))
        for stage in ("0", "1", "3")
    },
    "megatron": Script("megatron.core", "megatron_schedule.py"),
    "megatron_shared": Script(
        "megatron.core",
        "megatron_schedule.py",
        environment=(("DISTRIBUTED_OPTIMIZER", "1"),),
    ),
    "torchtune": Script("torch", "torchtune_recipe.py"),
    "fsdp2": Script("torch", "torchtitan_trainer.py"),
    "fsdp1": Script("torch", "torchtitan_trainer.py", environment=(("FSDP", "1"),)),
}
# A trainer of TRL is recorded in test_situations.py.
CHOSEN = ("accelerate_sync", "torchtune", "deepspeed", "megatron")
CASES = [(name, ranks) for name in SCRIPTS for ranks in (1, 2)]
if not os.environ.get("MSPROBE_TEST_ALL_SCRIPTS"):
    CASES = [(name, 2 if name == "megatron" else 1) for name in CHOSEN]


def need(script: Script) -> None:
    try:
        is_there = importlib.util.find_spec(script.library) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        pytest.skip(f"needs {script.library}")
    if script.library == "timm":
        # Its torchvision must have been built for this PyTorch.
        tried = subprocess.run(
            [sys.executable, "-c", "import timm"], capture_output=True, check=False
        )
        if tried.returncode:
            pytest.skip("timm cannot be imported")


def arguments(script: Script, folder: Path) -> list[str]:
    if not script.kind:
        return []
    if not (folder / "model").exists():
        write_model(folder / "model")
        write_data(folder / "data", script.kind)
    text = (
        f"--model_name_or_path {folder / 'model'} --dataset_name {folder / 'data'} --max_steps 3 "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 2 --output_dir out "
        "--report_to none --use_cpu --save_strategy no --logging_steps 1 --max_length 64 "
        "--bf16 False --seed 3"
    )
    return [*text.split(), *script.options]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port: int = found.getsockname()[1]
        return port


def run(
    folder: Path, ranks: int, words: list[str], script: Script
) -> tuple[int, list[str], dict[str, str]]:
    """Return the exit code, the lines printed, and the hashes of the weights written."""
    folder.mkdir()
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", *script.launcher]
        port = "--main_process_port" if "accelerate" in script.launcher[0] else "--master-port"
        # What ranks print to one pipe may meet within a line.
        command += [port, str(free_port()), "--tee", "1", "--log_dir", "logs"]
    done = subprocess.run(
        [*command, *words],
        cwd=folder,
        env={**os.environ, **_OFFLINE, **dict(script.environment)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    printed = [done.stdout]
    if ranks > 1:
        printed = [
            path.read_text() for path in sorted(folder.glob("logs/*/attempt_0/*/stdout.log"))
        ]
        assert len(printed) == ranks
    speed = r"'(train|eval)_(runtime|samples_per_second|steps_per_second)': '[^']*'"
    changing = rf"{speed}|^\[?\d{{4}}-\d\d-.*"
    lines = re.sub(changing, "", "\n".join(printed), flags=re.MULTILINE).splitlines()
    weights = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.suffix in _WEIGHTS and not _OTHER & set(path.relative_to(folder).parts)
    }
    return done.returncode, lines, weights


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "ranks"), CASES)
def test_a_script_trains_and_prints_the_same_and_is_recorded(
    tmp_path: Path, name: str, ranks: int
) -> None:
    script = SCRIPTS[name]
    need(script)
    words = [str(script.found()), *arguments(script, tmp_path)]
    plain = run(tmp_path / "plain", ranks, words, script)
    probe = ["-m", "msprobe", "run", "--out", "dump", "--step", "0-2"]
    recorded = run(tmp_path / "recorded", ranks, [*probe, *words], script)
    assert recorded == plain
    steps = open_dump(tmp_path / "recorded" / "dump").steps
    assert list(steps) == list(range(script.recorded))
    for step in steps.values():
        assert len(step.ranks) == ranks
        for view in step.ranks.values():
            assert any(record.startswith("Module.") for record, _ in view.records.items())
            if script.layer:
                assert sum(record.startswith(script.layer) for record in view.records) == 2
