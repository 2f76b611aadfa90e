# SPDX-License-Identifier: Apache-2.0
"""Launch scripts that differ in one argument, and ones that only look different."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from script_sets import DIFFER, EQUAL, FILES, OPEN, TEXT_ONLY

from msprobe.run_config.collecting import collect_static
from msprobe.run_config.comparing import RunComparison, compare_packs
from msprobe.run_config.conclusion import Kind
from msprobe.run_config.levels import Level
from msprobe.run_config.pack import PackWriter
from msprobe.run_config.result_files import is_difference


def compared(folder: Path, bench: dict[str, str], cmp: dict[str, str]) -> RunComparison:
    """Collect the ``run.sh`` of two folders with these files, and compare."""
    packs = []
    for name, files in (("bench", bench), ("cmp", cmp)):
        for file, text in files.items():
            path = folder / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        packs.append(folder / f"{name}.zip")
        collect_static(PackWriter(packs[-1]), [folder / name / "run.sh"])
    return compare_packs(*packs)


TRAIN = "torchrun --nproc_per_node 8 t.py --lr 1e-4 --seed 1 -b 32"


@pytest.mark.parametrize(
    ("bench", "cmp", "place"),
    [
        (TRAIN, TRAIN.replace("1e-4", "2e-4"), "lr"),
        (TRAIN, f"export NCCL_ALGO=Ring\n{TRAIN}", "env.NCCL_ALGO"),
        (f"NCCL_PROTO=LL {TRAIN}", f"NCCL_PROTO=Simple {TRAIN}", "env.NCCL_PROTO"),
        (TRAIN, TRAIN.replace("-b 32", "-b 64"), "b"),
        (TRAIN, TRAIN.replace("-b 32", "-b64"), "b"),
        (TRAIN, TRAIN.replace("node 8", "node 4"), "nproc_per_node"),
        (TRAIN, TRAIN + " --bf16", "bf16"),
        (TRAIN, TRAIN.replace("t.py", "u.py"), "script"),
        ("LR=1\npython t.py --lr $LR", "LR=2\npython t.py --lr $LR", "lr"),
        ("A=(--x 1 --y 2)\npython t.py ${A[@]}", "A=(--x 1 --y 3)\npython t.py ${A[@]}", "y"),
        ('srun bash -c "python t.py --lr 1"', 'srun bash -c "python t.py --lr 2"', "lr"),
        ("srun -n 8 python t.py", "srun -n 16 python t.py", "srun.n"),
        ("uv run accelerate launch t.py lr=1", "uv run accelerate launch t.py lr=2", "lr"),
        ("f() { python t.py --x $1; }\nf 1", "f() { python t.py --x $1; }\nf 2", "x"),
        ("for s in 1 2; do python t.py --s $s; done", "for s in 1 3; do python t.py --s $s; done",
         "t.py#2:s"),
        ("python a.py --x 1\npython b.py --x 1", "python a.py --x 1\npython b.py --x 2", "b.py:x"),
        ("python t.py --betas 0.9 0.95", "python t.py --betas 0.9 0.99", "betas"),
    ],
)  # fmt: skip
def test_the_changed_argument_is_named_first(
    tmp_path: Path, bench: str, cmp: str, place: str
) -> None:
    found = compared(tmp_path, {"run.sh": bench}, {"run.sh": cmp}).conclusion
    assert found.kind in (Kind.ARGUMENT, Kind.TEXT), found.sentence
    assert found.difference is not None
    assert found.difference.name == place


# Written after the code; 28 of its 38 scripts were named in the first run (docs/performance.md).
@pytest.mark.parametrize(
    ("text", "values", "place"),
    [
        ("deepspeed --num_gpus @ train.py --lr 1", "4 8", "num_gpus"),
        ("accelerate launch --mixed_precision @ t.py", "bf16 fp16", "mixed_precision"),
        ("mpirun -np @ python t.py --lr 1", "4 8", "mpirun.np"),
        ("python -m pkg.train --depth @", "12 24", "depth"),
        ("python3 -u t.py --wd=@", "0.1 0.01", "wd"),
        ("OMP_NUM_THREADS=@ python t.py", "1 4", "env.OMP_NUM_THREADS"),
        ("cat > c.yaml <<EOF\ndim: @\nEOF\npython t.py --config c.yaml", "512 1024", "config:dim"),
        ("cat <<EOF > c.toml\ndim = @\nEOF\npython t.py --config c.toml", "512 1024", "config:dim"),
        ("python t.py --lr ${RATE:-@}", "1e-4 2e-4", "lr"),
        ("M=@\nG=$(( (M + 1) * 4 / 2 ))\npython t.py --gbs $G", "2 3", "gbs"),
        ("U=@\nif [[ $U == 1 ]]; then A=--bf16; fi\npython t.py $A", "1 0", "bf16"),
        ("nohup python t.py --lr @ > log 2>&1 &", "1 2", "lr"),
        ("docker run --gpus all --rm img:1 python t.py --lr @", "1 2", "lr"),
        ("apptainer exec --nv x.sif torchrun t.py --lr @", "1 2", "lr"),
        ("conda run -n env python t.py --lr @", "1 2", "lr"),
        ('ssh node1 "cd /x && python t.py --lr @"', "1 2", "lr"),
        ("time python t.py --lr @", "1 2", "lr"),
        ('sbatch --gres=gpu:8 --wrap "python t.py --lr @"', "1 2", "lr"),
        ("python t.py --x 1 @", "--flash --no-flash", "flash"),
        ("torchrun --nnodes @ --nproc-per-node 8 t.py", "1 2", "nnodes"),
        ("python t.py train.batch=@ model=gpt", "32 64", "train.batch"),
        ("env HF_HUB_OFFLINE=@ python t.py", "1 0", "env.HF_HUB_OFFLINE"),
        ("run() { local bs=$1; python t.py --bs $bs; }\nrun @", "8 16", "bs"),
        ("python t.py --data a --data @", "b c", "data"),
        ('eval "python t.py --lr @"', "1 2", "lr"),
        ('CMD="python t.py --lr @"\n$CMD', "1 2", "lr"),
        ('CMD=(python t.py --lr @)\n"${CMD[0]}" "${CMD[1]}" ${CMD[2]} ${CMD[3]}', "1 2", "lr"),
        ("declare -A P=([lr]=@ [bs]=2)\npython t.py --lr ${P[lr]}", "1 2", "lr"),
        ("P[lr]=@\nK=lr\npython t.py --lr ${P[$K]}", "1 2", "lr"),
        ("python t.py --lr $(echo @)", "1 2", "lr"),
        ("export NCCL_P2P_DISABLE=1\n@ NCCL_P2P_DISABLE\npython t.py --x 1", "echo unset",
         "env.NCCL_P2P_DISABLE"),
        ("M=llama-7b\npython t.py --model ${M/7b/@}", "13b 70b", "model"),
        ("source sub/@.sh\npython t.py --lr $LR", "one two", "lr"),
        ("cd sub && source @.sh && python t.py --lr $LR", "one two", "lr"),
    ],
)  # fmt: skip
def test_the_changed_part_of_a_later_script_is_named_first(
    tmp_path: Path, text: str, values: str, place: str
) -> None:
    others = {"sub/one.sh": "LR=1", "sub/two.sh": "LR=2"}
    bench, cmp = ({"run.sh": text.replace("@", value)} | others for value in values.split())
    found = compared(tmp_path, bench, cmp).conclusion
    assert found.kind in (Kind.ARGUMENT, Kind.TEXT), found.sentence
    assert found.difference is not None
    assert place in found.difference.name


# Written after the code; 46 of its 55 scripts were named in the first run (docs/performance.md).
@pytest.mark.parametrize(
    ("text", "values", "place"),
    [
        ("#SBATCH --nodes=@\n#SBATCH -J x\nsrun python t.py", "2 4", "sbatch.nodes"),
        ("sbatch <<EOF\nsrun python t.py --lr @\nEOF", "1 2", "lr"),
        ("module load cuda/@\npython t.py", "12.1 12.4", "command.module"),
        ("pip install -q transformers==@\npython t.py", "4.40 4.41", "command.pip"),
        ('sed -i "s/lr.*/lr: @/" c.yaml\npython t.py --config c.yaml', "1 2", "command.sed"),
        ("LR=$(cat @.txt)\npython t.py --lr $LR", "one two", "lr"),
        ("LR=$(<@.txt)\npython t.py --lr $LR", "one two", "lr"),
        ('printf -v LR "%se-%02d" @ 4\npython t.py --lr $LR', "1 2", "lr"),
        ('python -c "from t import main; main(lr=@)"', "1 2", "code"),
        ("python - --x 1 <<EOF\nimport t\nt.main(@)\nEOF", "1 2", "code"),
        ("python t.py --lr 1 <<EOF\nprompt @\nEOF", "x y", "stdin"),
        ('echo "lr: 1" > d.yaml\necho "wd: @" >> d.yaml\npython t.py --config d.yaml', "1 2",
         "config:wd"),
        ("for s in {1..@}; do python t.py --s $s; done", "2 3", "t.py#3:s"),
        ("for s in $(seq @ 3); do python t.py --s $s; done", "1 2", "s"),
        ("for s in {1..@}; do python t.py --s $s; done", "50000 50001", "s"),
        ("for s in $(seq @); do python t.py --s $s; done", "50000 50001", "s"),
        ("ln -sf @.yaml run.yaml\npython t.py --config run.yaml", "one two", ""),
        ("X=@-run\npython t.py --size ${X:0:2}", "7b 9b", "size"),
        ("K=L@\nL1=3\nL2=4\npython t.py --lr ${!K}", "1 2", "lr"),
        ("D=(@)\npython t.py --n ${#D[@]}".replace("[@]", "[*]"), "1 1|2", "n"),
        ('let "X=@*2"\npython t.py --x $X', "2 3", "x"),
        ("echo @ | xargs -I{} python t.py --lr {}", "1 2", "command.echo"),
        ("kubectl exec pod -- python t.py --lr @", "1 2", "command.kubectl"),
        ("git checkout @\npython t.py", "main dev", "command.git"),
        ('if test "@" = yes; then A=--bf16; fi\npython t.py $A', "yes no", "condition"),
        ("llamafactory-cli train @.yaml", "one two", "positional"),
        ("python tools/train.py configs/@.py", "one two", "positional"),
        ("python t.py --config-path conf --config-name @", "one two", "config-name"),
        ("deepspeed --hostfile @.txt t.py", "one two", "hostfile"),
        ("python t.py --config @.ini", "one two", "config"),
        ("python t.py --model_name @", "gpt2 llama", "model_name"),
        ("python t.py --lora_rank @", "8 16", "lora_rank"),
        ("python t.py --drop_out @", "0.1 0.5", "drop_out"),
    ],
)  # fmt: skip
def test_the_changed_part_of_the_last_set_is_named_first(
    tmp_path: Path, text: str, values: str, place: str
) -> None:
    others = {"c.yaml": "lr: 3", "conf/one.yaml": "lr: 1", "conf/two.yaml": "lr: 2"}
    for name, value in (("one", "1"), ("two", "2")):
        others |= {f"{name}.txt": f"{value}\n", f"{name}.yaml": f"lr: {value}"}
        others |= {f"configs/{name}.py": f"lr = {value}", f"{name}.ini": f"[optim]\nlr = {value}"}
    scripts = (text.replace("@", value.replace("|", " ")) for value in values.split())
    bench, cmp = ({"run.sh": script} | others for script in scripts)
    found = compared(tmp_path, bench, cmp).conclusion
    assert found.kind in (Kind.ARGUMENT, Kind.TEXT), found.sentence
    assert found.difference is not None
    assert place in found.difference.name


# Written on 2026-11-27 before it was run; docs/performance.md has the first score.
@pytest.mark.parametrize(
    ("text", "values", "place"),
    [
        ("cat prompts_@.txt | python t.py --x 1", "a b", r"command\.cat"),
        ("for ((i = 0; i < @; i++)); do python t.py --fold $i; done", "3 4", "loop"),
        ("while read lr; do python t.py --lr $lr; done <<< @", "1 2", "herestring"),
        ("python t.py --x 1 < @.txt", "one two", "input"),
        ("export MY_SCALE=@\npython t.py", "1.5 2.5", r"env\.MY_SCALE"),
        ("python t.py --set a=@ --set b=2", "1 2", "set|a"),
        ("cd exps/@ && python t.py --x 1", "first second", "folder"),
        ("taskset -c @ python t.py", "0-3 0-7", r"taskset\.c"),
        ("docker run --rm img:@ python t.py", "1.0 1.1", "docker"),
        ("apptainer exec @.sif python t.py", "old new", "apptainer"),
        ("if [ -f flag_@ ]; then A=--bf16; fi\npython t.py $A", "a b", "condition|bf16"),
        ("head -n @ all.txt > train.txt\npython t.py --data train.txt", "9 99", "command"),
        ("cp data_@.bin data.bin\npython t.py --x 1", "a b", r"command\.cp"),
        ("trap 'kill 0' EXIT\npython t.py --lr @", "1 2", "lr"),
        ("S=@_large\npython t.py --x ${S%_*}", "gpt bert", "x"),
        ("A=(1 2 @)\npython t.py --x ${A[-1]}", "3 4", "x"),
        ("python t.py --x $(python -c 'print(@)')", "3 4", "x"),
        ("alias py='python t.py --lr @'\npy", "1 2", r"command\.alias|lr"),
        ("@ t.py --x 1", "deepspeed torchrun", "launcher"),
        ("python @ t.py", "-O -u", r"python\.O"),
        ("git submodule update --init @\npython t.py", "sub_a sub_b", r"command\.git"),
        ("git -C repo checkout @\npython t.py", "main dev", r"command\.git"),
        ("envsubst < tpl_@.yaml > c2.yaml\npython t.py --x 1", "a b", "redirect"),
        ("jq '.lr=@' base.json > c3.json\npython t.py --x 1", "1 2", "command"),
        ("IFS=@\nX=1,2\npython t.py --x $X", ", :", "IFS|x"),
        ("until python t.py --lr @; do sleep 5; done", "1 2", "lr|loop"),
        ("function go { python t.py --lr $1; }\ngo @", "1 2", "lr"),
        ("case $(hostname) in a*) B=@ ;; *) B=8 ;; esac\npython t.py --b $B", "16 32", "b"),
        ("#PBS -l select=@:ngpus=8\npython t.py", "1 2", r"pbs\.l\.select"),
        ("python t.py --lr 1 &\npython t.py --lr @ &\nwait", "2 3", "t.py#2:lr"),
        ("L=(1e-4 @)\nfor lr in ${L[*]}; do python t.py --lr $lr; done", "2e-4 3e-4", "lr"),
        ("exec 3< @.txt\npython t.py --x 1", "one two", "redirect"),
        ("python3 - @ <<'EOF'\nimport sys\ntrain(sys.argv)\nEOF", "a b", "positional"),
        ("python t.py @{a..c}", "p q", "positional"),
        ("make train LR=@", "1 2", r"command\.make|LR"),
        ("sh -c 'python t.py --lr $0' @", "1 2", "lr"),
        ("source <(echo LR=@)\npython t.py --lr $LR", "1 2", "lr|file|command"),
        ("python t.py --lr=${LR:=@}", "1 2", "lr"),
        ("xargs -a args_@.txt python t.py", "a b", "xargs"),
        ("tar xf data_@.tar -C data\npython t.py --x 1", "a b", r"command\.tar"),
        ("N=@\n(( N > 4 )) && A=--flash\npython t.py $A", "2 8", "flash|condition"),
        ("python t.py --files part_{1..@}.txt", "5000 5001", "files"),
        # A second set of the same day, written after the misses of the first were mended.
        ("mapfile -t A < list_@\npython t.py ${A[*]}", "a b", "redirect|input"),
        ("while IFS=@ read -r a b; do python t.py --x $a; done < one.txt", ", ;", "IFS|loop|x"),
        ("select x in a @; do python t.py --x $x; done", "b c", "x|for|select"),
        ("python t.py --x ${Y:+@}", "1 2", "x"),
        ("Y=1\npython t.py --x ${Y:+@}", "1 2", "x"),
        ("X=abc\npython t.py --x ${X@@}", "U L", "x"),
        ("declare -i N=@+1\npython t.py --n $N", "1 2", "n|declare"),
        ("readonly LR=@\npython t.py --lr $LR", "1 2", "lr"),
        ("python t.py --lr `expr @ + 1`", "1 2", "lr"),
        ("python t.py --x $'a\\t@'", "1 2", "x"),
        ("coproc python t.py --lr @", "1 2", "lr|command"),
        ("parallel -j @ python t.py --x ::: 1 2", "2 4", "parallel|command"),
        ("timeout 10 python t.py --lr @ || python t.py --lr 3", "1 2", "lr"),
        ("f() { local lr=${1:-@}; python t.py --lr $lr; }\nf", "1 2", "lr"),
        ("f() { echo @; }\npython t.py --lr $(f)", "1 2", "lr"),
        ("f() { LR=@; }\nf\npython t.py --lr $LR", "1 2", "lr"),
        ("[ @ -gt 4 ] && E=1 || E=2\npython t.py --e $E", "3 5", "e"),
        ("if ! grep -q @ cfg; then A=1; else A=2; fi\npython t.py --a $A", "x y", "condition|a"),
        ("case @ in (big|huge) D=1024;; (*) D=64;; esac\npython t.py --dim $D", "big tiny", "dim"),
        ("export A=1 B=@\nenv -u A python t.py", "2 3", r"env\.B"),
        ("env -i HOME=/x STEPS=@ python t.py", "2 3", "STEPS"),
        ("bash -lc 'source env.sh && exec torchrun t.py --lr @'", "2 3", "lr"),
        ("oneccl_bindings=@ mpirun -genv I_MPI_X=1 -n 2 python t.py", "a b", "oneccl"),
        ("mpirun -x NCCL_DEBUG -n 2 -H h1:@,h2:4 python t.py", "2 4", "mpirun.H"),
        ("nsys profile -o r python -m torch.distributed.run --nnodes=@ t.py", "2 4", "nnodes"),
        ("kubectl apply -f - <<EOF\nargs: [--lr, @]\nEOF", "1 2", "command.kubectl"),
        ("awk '{print $@}' f > idx.txt\npython t.py --idx idx.txt", "1 2", "command"),
        ("ln -sfn /data/@ data\npython t.py", "v1 v2", r"command\.ln"),
        ("rm -rf cache_@\npython t.py", "a b", r"command\.rm"),
        ("CUDA_VISIBLE_DEVICES=$((@-1)) python t.py", "1 2", "CUDA_VISIBLE"),
        ("A=@\nB=$A\nexport B\npython t.py", "1 2", r"env\.B"),
        ("ARGS='--lr @ --wd 1'\nset -- $ARGS\npython t.py $*", "1 2", "lr"),
        ("python t.py +trainer.max_steps=@ ~cb", "10 20", "max_steps"),
        ("composer -n @ t.py", "2 4", "n"),
        ("python -X importtime -W @ t.py", "error ignore", r"python\.W"),
        ("pwd\ncd sub\ncd ../@ && python t.py", "a b", "folder"),
    ],
)  # fmt: skip
def test_a_change_of_the_fresh_set_is_named_first(
    tmp_path: Path, text: str, values: str, place: str
) -> None:
    others = {"one.txt": "1", "two.txt": "2", "t.py": "import torch"}
    bench, cmp = ({"run.sh": text.replace("@", value)} | others for value in values.split())
    found = compared(tmp_path, bench, cmp).conclusion
    assert found.kind in (Kind.ARGUMENT, Kind.TEXT), found.sentence
    assert found.difference is not None
    assert re.search(place, found.difference.name), found.sentence


@pytest.mark.parametrize(("text", "values", "place"), DIFFER)
def test_a_change_of_the_four_sets_is_named_first(
    tmp_path: Path, text: str, values: tuple[str, str], place: str
) -> None:
    bench, cmp = (FILES | {"run.sh": text.replace("§", value)} for value in values)
    found = compared(tmp_path, bench, cmp).conclusion
    assert found.kind in (Kind.ARGUMENT, Kind.TEXT), found.sentence
    assert found.difference is not None
    assert re.search(place, found.difference.name), found.sentence


@pytest.mark.parametrize(("bench", "cmp"), OPEN)
def test_what_a_script_is_given_is_not_known_and_no_difference(
    tmp_path: Path, bench: str, cmp: str
) -> None:
    found = compared(tmp_path, {"run.sh": bench}, {"run.sh": cmp})
    assert found.conclusion.kind is Kind.INCOMPLETE, found.conclusion.sentence
    assert found.level is Level.WARNING


def test_secrets_in_statements_are_hidden(tmp_path: Path) -> None:
    run = {
        "run.sh": "X=1\ndocker login --password hunter2 && MY_TOKEN=abcdef reg push\npython t.py"
    }
    assert compared(tmp_path, run, run).level is Level.PASS
    with zipfile.ZipFile(tmp_path / "cmp.zip") as archive:
        text = archive.read("hyperparameters/statements.json").decode()
    assert "docker" in text
    assert "hunter2" not in text
    assert "abcdef" not in text


def test_the_line_of_a_statement_is_told_and_never_passes(tmp_path: Path) -> None:
    bench, cmp = (f"# {n}\n\nmodule load cuda/{n}\npython t.py" for n in (1, 2))
    found = compared(tmp_path, {"run.sh": bench}, {"run.sh": cmp})
    assert found.level is Level.TEXT
    assert "text differs at line 3, not explained" in found.conclusion.sentence
    swapped = compared(
        tmp_path / "order",
        {"run.sh": "module load a\nmodule load b\npython t.py"},
        {"run.sh": "module load b\nmodule load a\npython t.py"},
    )
    assert swapped.conclusion.kind is Kind.TEXT


def test_a_changed_line_of_a_program_outside_git_is_named(tmp_path: Path) -> None:
    run = {"run.sh": "cd code && python t.py --x 1", "code/t.py": "import m", "code/m.py": "a = 1"}
    base = run | {"run.sh": "python code/t.py --x 1"}
    found = compared(tmp_path, base, base | {"code/m.py": "a = 2"}).conclusion
    assert found.kind is Kind.CODE, found.sentence
    assert found.difference is not None
    assert found.difference.name == "code.m.py"


def test_the_contents_of_files_of_one_name_are_compared(tmp_path: Path) -> None:
    run = {"run.sh": "python t.py configs/a.py --config b.ini --hostfile h --config-name c"}
    base = run | {"configs/a.py": "o = dict(lr=1)", "b.ini": "[x]\ny = 1", "h": "n slots=8"}
    base |= {"conf/c.yaml": "z: 1"}
    changes = {
        "configs/a.py": ("o = dict(lr=2)", "positional:o.lr"),
        "b.ini": ("[x]\ny = 2", "config:x.y"),
        "h": ("n slots=4", "hostfile:content"),
        "conf/c.yaml": ("z: 2", "config-name:z"),
    }
    for number, (file, (text, place)) in enumerate(changes.items()):
        found = compared(tmp_path / str(number), base, base | {file: text}).conclusion
        assert found.difference is not None, file
        assert found.difference.name == place
    assert compared(tmp_path / "same", base, base).level is Level.PASS


def test_a_settings_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    run = {"run.sh": "python t.py --config gone.yaml"}
    found = compared(tmp_path, run, run)
    assert found.conclusion.kind is Kind.INCOMPLETE
    assert "gone.yaml" in found.conclusion.sentence
    assert found.level is Level.WARNING


def test_a_changed_variable_of_a_sourced_file_and_a_changed_settings_file(tmp_path: Path) -> None:
    run = {"run.sh": "source env.sh\npython t.py --lr $LR --config c.yaml"}
    base = run | {"env.sh": "LR=1", "c.yaml": "dim: 4"}
    found = compared(tmp_path / "a", base, base | {"env.sh": "LR=2"}).conclusion
    assert found.difference is not None
    assert found.difference.name == "lr"
    found = compared(tmp_path / "b", base, base | {"c.yaml": "dim: 8"}).conclusion
    assert found.difference is not None
    assert found.difference.name == "config:dim"


@pytest.mark.parametrize(
    ("bench", "cmp"),
    [
        (TRAIN, TRAIN),
        (TRAIN, TRAIN.replace("--lr 1e-4", "--lr=0.0001")),
        (TRAIN, TRAIN.replace("t.py", "'t.py'").replace("--seed 1", '"--seed" "1"')),
        (TRAIN, "RATE=1e-4\n" + TRAIN.replace("1e-4", "${RATE}")),
        (TRAIN, "A='--lr 1e-4'\nA+=' --seed 1'\ntorchrun --nproc_per_node 8 t.py $A -b 32"),
        (TRAIN, 'A=(--lr 1e-4)\ntorchrun --nproc_per_node 8 t.py "${A[@]}" --seed 1 -b 32'),
        (TRAIN, "go() { torchrun --nproc_per_node 8 t.py \"$@\"; }\ngo --lr 1e-4 --seed 1 -b 32"),
        (TRAIN, TRAIN.replace("torchrun", "python -m torch.distributed.run")),
        ("printf -v L %d 1\npython t.py --lr $L", 'printf -v L "%d" 1 # x\npython t.py --lr $L'),
        (TRAIN, "#SBATCH --job-name=a\n#SBATCH --time=1:00:00\n" + TRAIN),
        ("for s in 1 2; do python t.py $s; done", "for s in {1..2}; do python t.py $s; done"),
        # Written on 2026-11-27 before they were run.
        ("for s in 1 2 3; do python t.py $s; done", "for s in `seq 3`; do python t.py $s; done"),
        (TRAIN, TRAIN.replace(" --", " \\\n    --")),
        (TRAIN, f"# first\n\n  {TRAIN}  # last\n"),
        (TRAIN, TRAIN.replace("1e-4", "0.0001").replace("t.py", "'t.py'")),
        (TRAIN, "RATE=1e-4\n" + TRAIN.replace("1e-4", '"${RATE}"')),
        ("OMP_NUM_THREADS=4 python t.py", "export OMP_NUM_THREADS=4\npython t.py"),
        ("X=a\nif [ $X = a ]; then B=1; fi\npython t.py --b $B",
         'X="a"\nif [[ $X == a ]]; then\n  B=1\nfi\npython t.py --b $B'),
        ("while true; do python t.py --x 1 && break; done",
         "while true; do\n  # again\n  python t.py --x 1 && break\ndone"),
        ("for ((i = 0; i < 3; i++)); do python t.py --x $i; done",
         "for ((i = 0; i < 3; i++)); do\n  python t.py --x $i  # fold\ndone"),
        ("module load cuda/12\npython t.py", "module  load 'cuda/12'\npython t.py"),
        ("python t.py --x 1\npython t.py --x 2", "for i in 1 2; do python t.py --x $i; done"),
        ("python t.py --lr 1 --x 2", "python t.py --x 2 --lr 1"),
        ("python t.py --use-x 1", "python t.py --use_x 1"),
        *EQUAL,
    ],
)  # fmt: skip
def test_scripts_that_start_the_same_pass(tmp_path: Path, bench: str, cmp: str) -> None:
    found = compared(tmp_path, {"run.sh": bench}, {"run.sh": cmp})
    assert found.conclusion.kind is Kind.NOTHING, found.conclusion.sentence
    assert found.level is Level.PASS


@pytest.mark.parametrize(
    ("bench", "cmp"),
    [
        (TRAIN, "# a comment\n" + TRAIN.replace(" --", " \\\n   --") + " 2>&1 | tee log"),
        (TRAIN, "set -e\nif true; then :; fi\nmkdir -p logs && " + TRAIN + " || exit 1"),
        (TRAIN, "N=8\nif [ $N -gt 4 ]; then P=8; else P=4; fi\n" + TRAIN.replace("8", "$P")),
        (TRAIN, "case x in y) B=1 ;; x) B=32 ;; esac\n" + TRAIN.replace("32", "$B")),
        (TRAIN, "exec " + TRAIN + " --output_dir /elsewhere"),
        (TRAIN, 'python -c "import os; print(os.name)"\nnvidia-smi\ncp run.sh out/\n' + TRAIN),
        (TRAIN, f"echo start; date\n{TRAIN} > out.log 2>&1\necho end"),
        (TRAIN, f"trap 'kill 0' EXIT\n{TRAIN} 2>&1 | tee -a logs/out.log"),
        (TRAIN, f"nohup {TRAIN} > log.txt &\nwait $!"),
        (TRAIN, f'cd "$(dirname "$0")"\n{TRAIN}'),
        (TRAIN, TRAIN.replace("torchrun", "python3.11 -m torch.distributed.run")),
        *TEXT_ONLY,
    ],
)
def test_text_that_reaches_no_training_is_listed_and_never_passes(
    tmp_path: Path, bench: str, cmp: str
) -> None:
    found = compared(tmp_path, {"run.sh": bench}, {"run.sh": cmp})
    assert found.conclusion.kind is Kind.TEXT, found.conclusion.sentence
    assert found.level is Level.TEXT
    assert "not explained" in found.conclusion.sentence
    assert is_difference(found.level)


@pytest.mark.usefixtures("git_repositories")
@pytest.mark.parametrize(
    ("change", "place"),
    [("commit", "git.commit"), ("edit", "git.changes"), ("edit again", "git.diff")],
)
def test_the_state_of_the_code(tmp_path: Path, monkeypatch, change: str, place: str) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def git(*words: str) -> None:
        user = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *user, *words], check=True, capture_output=True)

    git("init", "-q")
    (folder / "t.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-qm", "first")
    if change == "edit again":
        (folder / "t.py").write_text("x = 2\n")
    collect_static(PackWriter(tmp_path / "a.zip"))
    (folder / "t.py").write_text("x = 3\n")
    if change == "commit":
        git("commit", "-qam", "second")
    collect_static(PackWriter(tmp_path / "b.zip"))
    found = compare_packs(tmp_path / "a.zip", tmp_path / "b.zip")
    assert found.conclusion.kind is Kind.CODE
    assert place in [each.name for each in found.differences()]
    assert found.level in (Level.WARNING, Level.ERROR)
