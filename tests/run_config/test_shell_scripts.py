# SPDX-License-Identifier: Apache-2.0
"""Launch scripts as people write them, and what bash itself makes of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from msprobe.run_config.shell_scripts import parse_shell_script

MEGATRON = r"""#!/bin/bash
# A comment with a "quote and $VARIABLE
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8   # another comment
MASTER_PORT=${MASTER_PORT:-6000}
CHECKPOINT='/path with blank/ckpt'
DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \
    --master_port $MASTER_PORT
"
GPT_ARGS=(
    --num-layers 24   # inside an array
    --lr 1.5e-4
    --betas 0.9 0.95
)
GPT_ARGS+=" --bf16"
mkdir -p logs; echo "--lr 99"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \
    ${GPT_ARGS[@]} \
    --load "$CHECKPOINT" \
    --seed=1234 \
    --split 949,50,1 2>&1 | tee logs/train.log --append
"""


def test_a_megatron_script() -> None:
    assert parse_shell_script(MEGATRON) == {
        "nproc_per_node": "8",
        "master_port": "6000",
        "script": "pretrain_gpt.py",
        "num-layers": "24",
        "lr": "1.5e-4",
        "betas": ["0.9", "0.95"],
        "bf16": True,
        "load": "/path with blank/ckpt",
        "seed": "1234",
        "split": "949,50,1",
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python train.py --a 1 --b", {"script": "train.py", "a": "1", "b": True}),
        ("python -u -m torch.distributed.run --nnodes 2 t.py --x=3",
         {"nnodes": "2", "script": "t.py", "x": "3"}),
        ("python -m my.trainer --x 3", {"script": "my.trainer", "x": "3"}),
        ("msrun --worker_num 8 --local_worker_num=8 t.py --config c.yaml",
         {"worker_num": "8", "local_worker_num": "8", "script": "t.py", "config": "c.yaml"}),
        ("FOO=1 nohup torchrun --standalone t.py --y -0.5 &",
         {"standalone": True, "script": "t.py", "y": "-0.5"}),
        ("/usr/bin/python3 ./run/t.py --name 'two words'",
         {"script": "./run/t.py", "name": "two words"}),
        ("accelerate launch --mixed_precision bf16 t.py > log.txt",
         {"mixed_precision": "bf16", "script": "t.py"}),
        ("echo train.py --lr 1", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_single_commands(line: str, expected: dict) -> None:
    assert parse_shell_script(line) == expected


def test_the_last_training_command_counts() -> None:
    text = "python prepare.py --lr 1\npython train.py --lr 2\nls -l"
    assert parse_shell_script(text) == {"script": "train.py", "lr": "2"}


def test_what_only_a_shell_can_compute_stays_as_written() -> None:
    text = "NOW=$(date)\npython t.py --tag $NOW --port $((6000+1)) --x ${UNKNOWN}"
    found = parse_shell_script(text)
    assert found["x"] == "${UNKNOWN}"
    assert found["tag"] == "$(date)"


@pytest.mark.parametrize(
    "text",
    [
        "A=x\n" + "A=$A$A\n" * 200 + "python t.py --a $A",
        'python t.py --a "never ends',
        "python t.py " + "(" * 10_000,
        "'" * 10_001 + "\npython t.py",
        "\\",
        "#" * 100_000,
        "A" * 200_000,
    ],
)
def test_odd_and_hostile_scripts_end(text: str) -> None:
    assert isinstance(parse_shell_script(text), dict)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is the oracle")
def test_the_words_are_those_that_bash_makes(tmp_path: Path) -> None:
    """Let bash run the script with a torchrun that prints what it was given."""
    fake = tmp_path / "torchrun"
    fake.write_text('#!/bin/bash\nprintf "%s\\n" "$@" > ' + str(tmp_path / "words"))
    fake.chmod(0o755)
    script = tmp_path / "run.sh"
    script.write_text(MEGATRON.replace("echo", "true"))
    subprocess.run(
        ["bash", str(script)],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    words = (tmp_path / "words").read_text().splitlines()
    found = parse_shell_script(MEGATRON)
    rebuilt = []
    for name, value in found.items():
        if name == "script":
            rebuilt.append(value)
            continue
        rebuilt += [f"--{name}={value}"] if name == "seed" else [f"--{name}"]
        if name != "seed" and value is not True:
            rebuilt += value if isinstance(value, list) else [value]
    assert sorted(rebuilt) == sorted(words)
