# SPDX-License-Identifier: Apache-2.0
"""Wrong command lines: one line on stderr, in words of the user, with the next thing to do."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from builders.networks import write_dump
from msprobe.cli import main

INTERNAL: Final = re.compile(
    r"\[Errno|codec|Traceback|NoneType|0x[0-9a-f]{4}|\w+Error|(?<!JSON )\bobject\b|"
    r"invalid (int|float)|\bdict\b|\[\[|unexpected|expected str|PosixPath|\bbool\b|utf-8|"
    r"unrecognized|ignored explicit"
)
SCRIPT: Final = "print(1)"

# Command line, and words that the answer has to contain, with ; between them.
WRONG: Final = """
: name a command
--versoin: --version
--nothing: there is no option --nothing
--completion csh: bash; zsh; fish
-f: pytorch or mindspore
-f torch compare new old: 'torch'; pytorch or mindspore
compare new old --scheduler nowhere: 'nowhere'; use tcp://host:port
--framework tensorflow show new: 'tensorflow'
shwo new: show
compre new old: compare
comparee: compare
compare_ckp a b: compare-ckpt
overflow-chek new: overflow-check
config_chck: config-check
merge-results: merge-result
mergeresult: merge-result
codemapping: code-mapping
triag new old: triage
bisct a b: bisect
repiar new: repair
rnu train.py: run
prase: parse
configschema: config-schema
nanalyze new: nan-analyze
xyzzy: there is no command xyzzy
new: name a command in front of new
train.py: msprobe run train.py
compare: TARGET
compare new: 1 given
compare new old new: 3 given
compare new old --jsno: --json
compare new old --exitcode: --exit-code
compare new old --exit_cod: --exit-code
compare new old --outptu x: --output
compare new old -json: --json
compare new old --json=1: --json takes no value
compare new old --html=yes: --html takes no value
compare new old --format pdf: xlsx, csv or parquet
compare new old --format xlxs: did you mean xlsx
compare new old --format: --format
compare new old --align sometimes: auto, always or never
compare new old --workers 0: '0'; 1 or more
compare new old --workers many: 'many'
compare new old --workers -2: '-2'
compare new old --workers 1.5: '1.5'
compare new old --step a: 'a'; 0,5-7
compare new old --step 3-1: steps 1, 2, 3
compare new old --step 1,,2: '1,,2'
compare new old --step -1: '-1'
compare new old --rank x: 'x'
compare new old --rank 0.5: '0.5'
compare new old --step 7: steps 7
compare new old --rank 9: ranks 9
compare new old --mode atb: --mode atb
compare new old --mode nonsense: leave it out
compare new old --fusion-rule-file x: --fusion-rule-file
compare new old --columns pretty: documented or neutral
compare new nothing: nothing
compare nothing new: nothing
compare nothing nothing: nothing
compare new empty: empty
compare new text.txt: text.txt
compare new bytes.bin: bytes.bin
compare new half.json: half.json
compare new latin.json: latin.json
compare new weights.npy: weights.npy
compare weights.npy half.npy: half.npy
compare -i nothing.json: nothing.json
compare -i half.json: half.json
compare -i latin.json: latin.json
compare -i empty: empty
compare -i list.json: list.json
compare new old -i list.json: once
compare new old -tp new -gp old: once
compare -tp new: 1 given
compare new old -dm nothing.yaml: nothing.yaml
compare new old -dm latin.json: latin.json
compare new old -lm half.yaml: half.yaml
compare new old -cm nothing.yaml: nothing.yaml
compare new old -am nothing.yaml: nothing.yaml
compare new old --tolerances nothing.yaml: nothing.yaml
compare new old --tolerances half.yaml: half.yaml
compare new old --tolerances empty: empty
compare new old --config nothing.yaml: nothing.yaml
compare new old -o text.txt: text.txt
compare new old --replicas: one dump
compare new --replicas: two ranks
compare above new: above
compare above above: above
show: DUMP
show nothing: nothing
show empty: empty
show text.txt: text.txt
show bytes.bin: bytes.bin
show half.json: half.json
show latin.json: latin.json
show half.npy: half.npy
show new --step 5: step 5
show new --step x: 'x'
show new --step -1: '-1'
show new --rank 3: 3
show new --rank x: x
show new --depth -1: '-1'
show new --depth two: 'two'
show new --limit 1e3: '1e3'
show new --filtre x: --filter
show new --filter nothing*: no record fits
show new Functional.linaer.1.forward: Functional.linear.1.forward
show new layers.7.fc: no record
show new a b: 'b'
show new --jsn: --json
show new --depht 2: --depth
show above: above
overflow-check: DUMP
overflow-check nothing: nothing
overflow-check new -i new: one dump
overflow-check new --step x: 'x'
overflow-check new --step 5: 5
overflow-check new --exit_cod: --exit-code
overflow-check empty: empty
triage new: REFERENCE
triage new nothing: nothing
triage new empty: empty
triage new old --agian old: --again
triage new old more: 'more'
bisect new: REFERENCE
bisect new old: signature
bisect nothing old: nothing
bisect new old --noise nothing: signatures
compare-ckpt a.pt: REFERENCE
compare-ckpt nothing.pt nothing.pt: nothing.pt
compare-ckpt text.txt text.txt: text.txt
compare-ckpt bytes.bin bytes.bin: bytes.bin
compare-ckpt half.safetensors half.safetensors: half.safetensors
compare-ckpt empty empty: empty
compare-ckpt new old: msprobe compare new old
compare-ckpt new weights.npy: new
compare-ckpt weights.npy weights.npy --rtol x: 'x'
compare-ckpt weights.npy weights.npy --rtol -1: '-1'
compare-ckpt weights.npy weights.npy --atol inf: 'inf'
compare-ckpt weights.npy weights.npy --atol nan: 'nan'
compare-ckpt weights.npy weights.npy -o text.txt: text.txt
compare-ckpt weights.npy weights.npy --onyl x: --only
config-check: -d; TARGET
config-check -c a.zip: --compare; 2
config-check -c nothing.zip nothing.zip: nothing.zip
config-check -c half.zip half.zip: half.zip
config-check -d nothing.sh: nothing.sh
config-check -d -c a b: not allowed
config-check -vc log: -d
config-check half.zip: TARGET
config-check nothing.zip nothing.zip: nothing.zip
merge-result: --input-dir
merge-result -i nothing -o out -config merge.yaml: nothing
merge-result -i empty -o out -config nothing.yaml: nothing.yaml
merge-result -i empty -o out -config half.yaml: half.yaml
merge-result -i empty -o out -config merge.yaml: empty
repair: DUMP
repair nothing: nothing
repair new --dryrun: --dry-run
repair new old: 'old'
config-schema more: 'more'
config-schema --jsno: no option --jsno
code-mapping --ir nothing.ir: --dump-data
code-mapping --ir nothing.ir --dump-data new: nothing.ir
code-mapping --ir text.txt --dump-data nothing: text.txt
code-mapping --ir x --dmp-data y: --dump-data
parse -d nothing: nothing
parse -d empty -f NCHQ: NCHW
parse -d empty -t csv: npy or pt
dump-config: FILE
dump-config nothing.json: nothing.json
dump-config half.json: half.json
dump-config latin.json: latin.json
dump-config empty: empty
dump-config half.json --model-size big: 'big'
keep: DUMP
keep nothing: nothing
keep empty: empty
keep new --realease: --release
estimate: script
estimate nothing.py: nothing.py
estimate --level L9 train.py: 'L9'; L0, L1, mix
estimate --task md5 train.py: 'md5'
estimate --step a train.py: 'a'
estimate --step 0-99999999 train.py: from 0 to 1000000
estimate --levle mix train.py: --level
estimate torchrun train.py: torchrun
export new: file to write
export new out.xls: .parquet
export nothing out.csv: nothing
export new out.csv --sql nonsense: the query cannot be run
export new empty: .parquet
attach: PID
attach train.py: 'train.py'
attach 1 --steps 0: '0'
attach 4194304: 4194304
run: script
run nothing.py: nothing.py
run empty: empty/__main__.py
run --lvel mix train.py: --level
run --level L7 train.py: L0, L1, L2, mix
run --level l1 train.py: L1
run --task statistic train.py: statistics
run --step x train.py: --step; 'x'
run --rank a train.py: 'a'
run --config nothing.json train.py: nothing.json
run --config half.json train.py: half.json
run --config latin.json train.py: latin.json
run --scope one train.py: script
run -m nothing.at.all: nothing
run -m: script
run torchrun train.py: torchrun
run --step-function 1x train.py: 1x
run --random-log text.txt/log train.py: --random-log
run --on-requst train.py: --on-request
graph new -o graph.pdf: .html
export new -o text.txt/a.csv: text.txt
estimate --config nothing.json train.py: nothing.json
estimate --step-function other train.py: other
monitor show new: TrainerMon
verify new --list nothing: --list
bisect new old --again nothing: signature
noise new: two
run --step-function other train.py: other
determinism: script
determinism nothing.py: nothing.py
determinism --level L9 train.py: 'L9'; L0, L1 or mix
determinism --step x train.py: 'x'
determinism --stpe 0 train.py: --step
determinism torchrun train.py: torchrun
determinism --timeout x train.py: 'x'
determinism -o text.txt train.py: text.txt; choose another path
perturb: DUMP
perturb nothing: nothing
perturb empty: empty
perturb new --rank 7: no call is selected; ranks 0
perturb new --step 5: no call is selected; steps 0
perturb new --lmit 3: --lmit
op-script: DUMP, CALL
op-script new: CALL
op-script nothing Functional.linear.0.forward: nothing
op-script new Functional.linaer.0.forward: Functional.linear.0.forward
op-script empty Functional.linear.0.forward: empty
op-script new Functional.linear.0.forward -o text.txt/a.py: text.txt; choose another path
acc-check: DUMP
acc-check nothing: nothing
acc-check -api_info nothing.json: nothing.json
acc-check empty: empty
acc-check new --dtype float99: float32
acc-check new --device abacus: 'abacus'; cpu, cuda
acc-check new --limti 2: --limti
multi-acc-check: DUMP
multi-acc-check nothing: nothing
multi-acc-check new -n many: 'many'
multi-acc-check new -n 999: from 0 to 64
online-keys: DIR
online-keys text.txt: text.txt; choose another path
online-keys text.txt/keys: text.txt
run-overflow-check: DUMP
run-overflow-check nothing: nothing
run-overflow-check empty: empty
run-overflow-check half.json: half.json
api-precision-compare -npu nothing.csv -gpu nothing.csv: nothing.csv
api-precision-compare -npu text.txt -gpu text.txt: 'API Name'
api-precision-compare -npu bytes.bin -gpu bytes.bin: bytes.bin
monitor: name a command
monitor shwo new: monitor show
monitor compare new: REFERENCE
monitor compare new old: TrainerMon
monitor view: TARGET
monitor view nothing: TrainerMon
monitor view empty --port x: 'x'
grad-compare new: --output
grad-compare nothing nothing -o out: nothing
grad-compare empty empty -o out: empty
data2db: --data
data2db --data nothing --db out: TrainerMon
data2db --data empty --db out --to xls: trend_db, csv
op-generate: --config-input
op-generate -i nothing.json -o out: nothing.json
op-generate -i half.json -o out: half.json
op-generate -i latin.json -o out: latin.json
graph-visualize: --target-path
graph-visualize -tp nothing -gp nothing -o out: nothing
graph: a dump
graph nothing: nothing
graph new old more: one dump
graph new --export pfd: html, json
verify: DUMP
verify nothing: nothing
verify new --device abacus: 'abacus'; cpu, cuda
verify new --lsit a: --list
noise nothing nothing: nothing
noise new old --limit x: 'x'
compare new  old: is empty
run --deterministic=yes train.py: --deterministic takes no value
run --scope a b --on-request=1 train.py: --on-request takes no value
estimate --json=1 train.py: --json takes no value
graph new old --serve --port 99999: '99999'; 65535
monitor view new --port 70000: '70000'; 65535
monitor show text.txt: TrainerMon
monitor check text.txt: TrainerMon
verify new --import nothing.py: there is no Python file here
verify new --import text.txt: text.txt; .py
graph-visualize -tp new -o out --rank-size x: 'x' is no whole number
graph-visualize -tp new -o out --tp 0: '0' is no whole number of 1 or more
run-overflow-check new -d abacus: 'abacus'; cpu, cuda
keep --release nothing: there is no such folder
repair text.txt: holds no dump to repair; name the folder
show half.zip: is no dump; its dump.json
graph text.txt: is no dump; the folder
op-generate -i half_op.json -o out: "extract_api_path"; the file to write
""".strip().splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with two dumps, and with files that are damaged in several ways."""
    path = tmp_path_factory.mktemp("wrong")
    write_dump(path / "new", scale=1.5)
    write_dump(path / "old")
    (path / "empty").mkdir()
    shutil.copytree(path / "new", path / "above" / "one")
    shutil.copytree(path / "old", path / "above" / "two")
    (path / "text.txt").write_text("nothing that a program reads\n")
    (path / "bytes.bin").write_bytes(bytes(range(256)))
    (path / "half.json").write_text('{"task": "statistics", "data": {')
    (path / "latin.json").write_bytes(b'{"task": "\xe9t\xe9"}')
    (path / "list.json").write_text("[]")
    (path / "half_op.json").write_text('{"dump_json_path": "dump.json", "api_name": "Torch.mm.0"}')
    (path / "half.yaml").write_text("a: [1, 2\nb: {")
    (path / "merge.yaml").write_text("api: [Functional]\n")
    (path / "train.py").write_text(SCRIPT)
    np.save(path / "weights.npy", np.ones(3))
    (path / "half.npy").write_bytes((path / "weights.npy").read_bytes()[:-8])
    (path / "half.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    (path / "half.zip").write_bytes(b"PK\x03\x04half")
    return path


@pytest.mark.parametrize("line", WRONG, ids=lambda line: line.partition(":")[0])
def test_the_answer_is_one_readable_line(capsys, monkeypatch, folder, line):
    monkeypatch.chdir(folder)
    words, _, wanted = line.rpartition(": ")
    before = sorted(Path().rglob("*"))
    try:
        code = main(words.split(" ") if words else [])
    except SystemExit as end:
        code = end.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert not INTERNAL.search(captured.err), captured.err
    for text in wanted.split("; "):
        assert text in captured.err
    assert set(Path().rglob("*")) <= {*before, Path("output")}
