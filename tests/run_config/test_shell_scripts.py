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


def arguments_of(text: str) -> dict:
    return parse_shell_script(text).arguments


def test_a_megatron_script() -> None:
    assert arguments_of(MEGATRON) == {
        "nproc_per_node": "8",
        "master_port": "6000",
        "script": "pretrain_gpt.py",
        # To append a text to an array appends it to the first word, a trap in many scripts.
        "num-layers": True,
        "lr": "1.5e-4",
        "betas": ["0.9", "0.95"],
        "bf16": "24",
        "load": "/path with blank/ckpt",
        "seed": "1234",
        "split": "949,50,1",
        "env.CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python train.py --a 1 --b", {"script": "train.py", "a": "1", "b": True}),
        ("python -u -m torch.distributed.run --nnodes 2 t.py --x=3",
         {"nnodes": "2", "script": "t.py", "x": "3"}),
        ("python -m my.trainer --x 3", {"script": "my.trainer", "x": "3"}),
        ("msrun --worker_num 8 --local_worker_num=8 t.py --config c.yaml",
         {"worker_num": "8", "local_worker_num": "8", "script": "t.py", "config": "c.yaml",
          "launcher": "msrun"}),
        ("FOO=1 nohup torchrun --standalone t.py --y -0.5 &",
         {"standalone": True, "script": "t.py", "y": "-0.5", "env.FOO": "1"}),
        ("/usr/bin/python3 ./run/t.py --name 'two words'",
         {"script": "./run/t.py", "name": "two words"}),
        ("accelerate launch --mixed_precision bf16 t.py > log.txt",
         {"mixed_precision": "bf16", "script": "t.py", "launcher": "accelerate"}),
        ("python3.10 t.py -b 32 -j8 --lr 1", {"script": "t.py", "b": "32", "j": "8", "lr": "1"}),
        ("uv run accelerate launch --config_file x.yaml t.py lr=1e-4 m.d=5 +opt=adam",
         {"config_file": "x.yaml", "script": "t.py", "lr": "1e-4", "m.d": "5", "opt": "adam",
          "launcher": "accelerate", "uv.positional": ["run"]}),
        ('srun --ntasks 8 bash -c "python t.py --lr 1e-4 --bf16"',
         {"srun.ntasks": "8", "script": "t.py", "lr": "1e-4", "bf16": True}),
        ("singularity exec --nv image.sif torchrun --nproc_per_node=8 t.py --x 1",
         {"singularity.nv": "image.sif", "singularity.positional": ["exec"],
          "nproc_per_node": "8", "script": "t.py", "x": "1"}),
        ("CUDA_VISIBLE_DEVICES=0 \\\n  python t.py --x 1",
         {"script": "t.py", "x": "1", "env.CUDA_VISIBLE_DEVICES": "0"}),
        ("NCCL_ALGO=Ring; export NCCL_ALGO HF_TOKEN=hf_ABCDEFGHIJK EDITOR=vi\npython t.py",
         {"script": "t.py", "env.NCCL_ALGO": "Ring", "env.HF_TOKEN": "<hidden 1ac3ee08>",
          "env.EDITOR": "vi"}),
        ("A=1 B='two words'\npython t.py --a $A --b \"$B\" --c $B",
         {"script": "t.py", "a": "1", "b": "two words", "c": ["two", "words"]}),
        ('python t.py --a "x  $UNSET_ y"', {"script": "t.py", "a": "x  $UNSET_ y"}),
        ("srun bash <<END\npython t.py --x 1\nEND", {"script": "t.py", "x": "1"}),
        ("set -- 4 5\npython t.py --x $2", {"script": "t.py", "x": "5"}),
        ("cd code && python t.py --x 1 || exit 1", {"script": "t.py", "x": "1", "folder": "code"}),
        (': "${X:=7}"\npython t.py --x $X', {"script": "t.py", "x": "7"}),
        ("set -ea; NCCL_ALGO=Ring; set +a; NCCL_PROTO=LL\npython t.py",
         {"script": "t.py", "env.NCCL_ALGO": "Ring"}),
        ("ray job submit --working-dir=. -- python t.py --x 1",
         {"ray.working-dir": ".", "ray.positional": ["job", "submit"], "script": "t.py", "x": "1"}),
        ("fabric run --devices 2 t.py --x 1",
         {"positional": ["run"], "devices": "2", "script": "t.py", "x": "1", "launcher": "fabric"}),
        ("srun --prolog=/a/b.sh env BASH_ENV=c.sh python t.py --x 1",
         {"srun.prolog": ["/a/b.sh", "env"], "srun.BASH_ENV": "c.sh",
          "script": "t.py", "x": "1"}),
        ("accelerate config; python -c 'print(1)'; python --version", {}),
        ("echo train.py --lr 1", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_single_commands(line: str, expected: dict) -> None:
    assert arguments_of(line) == expected


def test_several_trainings_are_all_there() -> None:
    text = "python prepare.py --lr 1\npython train.py --lr 2\nls -l\npython train.py --lr 3"
    assert arguments_of(text) == {
        "prepare.py:script": "prepare.py",
        "prepare.py:lr": "1",
        "train.py:script": "train.py",
        "train.py:lr": "2",
        "train.py#2:script": "train.py",
        "train.py#2:lr": "3",
    }


def test_what_only_a_shell_can_compute_stays_as_written_and_is_said() -> None:
    text = "NOW=$(date)\npython t.py --tag $NOW --port $((6000+NOW)) --x ${UNKNOWN} --y 1"
    found = parse_shell_script(text)
    assert found.arguments["x"] == "$UNKNOWN"
    assert found.arguments["tag"] == "$(date)"
    assert set(found.unresolved) == {"tag", "port", "x"}
    assert found.unresolved["x"] == "${UNKNOWN} is not set in the script (line 2)"


def test_numbers_of_arithmetic_are_those_of_a_shell() -> None:
    found = parse_shell_script(
        "N=9\npython t.py --a $((N * 2 + 1)) --b $((010 + 1)) --c $((-7 / 2))"
    )
    assert found.arguments["a"] == "19"
    assert found.arguments["b"] == "$((010 + 1))"  # octal: as text
    assert found.arguments["c"] == "-3"
    assert found.unresolved == {}


def test_a_script_that_starts_nothing_says_so() -> None:
    found = parse_shell_script("ls -l; echo train.py")
    assert found.arguments == {}
    assert found.unresolved == {"launch": "no command that starts a training was found"}


BRANCHES = """
LR=1e-4
if [ "$1" = big ]; then
  LR=5e-4
fi
if [ "$LR" = 7 ]; then LR=8; fi
EXTRA=
[[ -n "$DEBUG" ]] && EXTRA="--debug"
case $MODE in fast) STEPS=1 ;; *) STEPS=9 ;; esac
python t.py --lr $LR $EXTRA --steps $STEPS --seed 1
"""


def test_all_branches_are_followed() -> None:
    found = parse_shell_script(BRANCHES)
    assert found.arguments == {
        "script": "t.py",
        "lr": "8 or 5e-4 or 1e-4",
        "debug": "True or nothing",
        "steps": "1 or 9",
        "seed": "1",
    }
    assert set(found.unresolved) == {"lr", "debug", "steps"}
    assert found.unresolved["lr"].endswith("depends on the condition in line 3")


def test_a_training_in_a_branch_may_not_be_started() -> None:
    found = parse_shell_script('if [ "$1" = a ]; then python a.py --x 1; else python b.py; fi')
    assert found.arguments["a.py:x"] == "1"
    assert set(found.unresolved) == {"a.py:script", "b.py:script"}


def test_further_arguments_of_the_script_are_no_values_of_the_last_option() -> None:
    found = parse_shell_script('python t.py --lr 1e-4 --betas 0.9 0.95 "$@"')
    assert found.arguments["lr"] == "1e-4"
    assert found.arguments["betas"] == ["0.9", "0.95"]
    assert set(found.unresolved) == {"positional"}


def test_any_number_of_branches_is_followed() -> None:
    text = "".join(f'[ "$1" = {n} ] && A={n}\n' for n in range(40)) + "python t.py --a $A"
    values = [*map(str, reversed(range(40))), "nothing"]
    assert parse_shell_script(text).arguments["a"] == " or ".join(values)


def test_functions_loops_and_sourced_files(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("export HIDDEN=64\nCOMMON=(--bf16 --hidden $HIDDEN)\n")
    (tmp_path / "inner.sh").write_text("python deep.py --depth $1\n")
    text = """
    source env.sh
    run() { local seed=$1; shift; python t.py --seed "$seed" "${COMMON[@]}" "$@"; }
    for seed in 1 2; do run $seed --lr 3; done
    bash inner.sh 5
    srun ./inner.sh 6
    . missing.sh
    """
    found = parse_shell_script(text, tmp_path)
    assert found.arguments["t.py:seed"] == "1"
    assert found.arguments["t.py#2:seed"] == "2"
    assert found.arguments["t.py:bf16"] is True
    assert found.arguments["t.py:hidden"] == "64"
    assert found.arguments["t.py:lr"] == "3"
    assert found.arguments["deep.py:depth"] == "5"
    assert found.arguments["deep.py#2:depth"] == "6"
    assert list(found.unresolved) == ["file missing.sh"]


@pytest.mark.parametrize(
    "text",
    [
        "A=x\n" + "A=$A$A\n" * 200 + "python t.py --a $A",
        "f() { f; f; }\nf\npython t.py",
        "for a in 1 2 3 4 5 6 7 8; do " * 8 + "python t.py;" + " done;" * 8,
        "".join(f'[ "$1" = {n} ] && A={n}\n' for n in range(40)) + "python t.py --a $A",
        "python t.py " + '"${A:-' * 300 + "}" * 300,
        'python t.py --a "never ends',
        "python t.py " + "(" * 10_000,
        "'" * 10_001 + "\npython t.py",
        "\\",
        "#" * 100_000,
        "A" * 200_000,
    ],
)
def test_odd_and_hostile_scripts_end(text: str) -> None:
    assert isinstance(parse_shell_script(text).arguments, dict)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is the oracle")
def test_the_words_are_those_that_bash_makes(tmp_path: Path) -> None:
    """Let bash run the script with a torchrun that prints what it was given."""
    fake = tmp_path / "torchrun"
    fake.write_text(
        '#!/bin/bash\nprintf "%s\\n" "$@" "$CUDA_DEVICE_MAX_CONNECTIONS" > '
        + str(tmp_path / "words")
    )
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
    *words, connections = (tmp_path / "words").read_text().splitlines()
    found = arguments_of(MEGATRON)
    assert found.pop("env.CUDA_DEVICE_MAX_CONNECTIONS") == connections
    rebuilt = []
    for name, value in found.items():
        if name == "script":
            rebuilt.append(value)
            continue
        rebuilt += [f"--{name}={value}"] if name == "seed" else [f"--{name}"]
        if name != "seed" and value is not True:
            rebuilt += value if isinstance(value, list) else [value]
    assert sorted(rebuilt) == sorted(words)


# Each training has one value that bash has to agree with.
VALUES = r"""
N=5
if (( N > 8 )); then X=a; elif (( $N >= 5 )); then X=b; else X=c; fi
python t.py --x $X
python t.py --x $(( (N - 2) * 7 / 2 % 4 ))
python t.py --x $((-N))
for i in 1 2 3; do if (( i == 2 )); then break; fi; python t.py --x $i; done
for i in {1..3} {a..c} {9..1..4} x{p,q}y; do python t.py --x $i; done
for i in $(seq 3) $(seq 2 -1 0); do python t.py --x $i; done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is the oracle")
def test_values_loops_and_conditions_are_those_of_bash(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/bash\necho "$3" >> {tmp_path / "values"}\n')
    fake.chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["bash", "-c", VALUES], env=path, cwd=tmp_path, check=True)
    found = parse_shell_script(VALUES)
    values = [value for name, value in found.arguments.items() if name.endswith(":x")]
    assert values == (tmp_path / "values").read_text().splitlines()
    assert found.unresolved == {}


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("S=7b-run\npython t.py --x ${S:0:2}", "${S:0:2} with S=7b-run"),
        ("S=a.b\npython t.py --x ${S#*.}", "${S#*.} with S=a.b"),
        ('S=a.b\npython t.py --x $(basename $S ".b")', "$(basename $S .b) with S=a.b"),
        ("N=1\npython t.py --x $((N++ * 2))", "$((N++ * 2)) with N=1"),
        ("S=2\nprintf -v X %02d $S\npython t.py --x $X", "printf -v X %02d $S with S=2"),
    ],
)
def test_an_expansion_that_is_not_simulated_is_text_with_its_values(script: str, text: str) -> None:
    found = parse_shell_script(script)
    assert found.arguments["x"] == text
    assert found.unresolved == {}


def test_a_loop_whose_rounds_are_not_known_is_said() -> None:
    assert "loop in line 1" in parse_shell_script("while check; do python t.py; done").unresolved
    assert parse_shell_script("while true; do python t.py; done").unresolved == {}
    many = parse_shell_script("for ((i = 0; i < 99; i++)); do python t.py --x $i; done")
    assert many.unresolved == {}
    assert [one.text for one in many.statements] == [
        *("variable1 = 0", "variable1 < 99", "variable1++"),
        "t.py in a loop",
    ]
    unknown = parse_shell_script("((i += $(date)))\npython t.py --x $i").unresolved
    assert "x" in unknown


def test_a_word_that_is_not_followed_is_compared_as_text() -> None:
    followed = parse_shell_script("LR=1\npython t.py --lr $LR")
    assert [one.name for one in followed.statements] == ["training"]
    script = parse_shell_script("declare -n ref=LR\nref=1\nmkdir out\npython t.py --lr $LR")
    assert [(one.line, one.name, one.text) for one in script.statements] == [
        (1, "declare", "declare -n ref=LR with ref=LR"),
        (2, "variable.ref", "ref=1"),
        (3, "command.mkdir", "mkdir out"),
        (4, "training", "t.py"),
    ]


def test_of_a_long_script_words_behind_the_most_are_compared_as_text() -> None:
    lines = [f"[ -f a{n} ] && export B{n}=1" for n in range(300)]
    script = parse_shell_script("\n".join((*lines, "python t.py --x 1")))
    assert any(one.line > 200 for one in script.statements)


@pytest.mark.parametrize("read", ["read -ra A < list.txt", "mapfile -t A < list.txt"])
def test_an_array_that_a_file_fills_has_all_its_elements(tmp_path: Path, read: str) -> None:
    blank = " " if read.startswith("read") else "\n"
    (tmp_path / "list.txt").write_text(blank.join("123") + "\n")
    text = f"{read}\npython t.py --lr ${{A[0]}} --wd ${{A[2]}}"
    found = parse_shell_script(text, tmp_path)
    assert (found.arguments["lr"], found.arguments["wd"]) == ("1", "3")
    assert "wd" not in found.unresolved
