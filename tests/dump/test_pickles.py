# SPDX-License-Identifier: Apache-2.0
"""Pickles read as data: the C extension reads every pickle, damaged ones too, as Python does."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

_READ = """
import json, sys
from pathlib import Path
from msprobe.dump.formats.pickle import read_pickle
found = []
for each in json.loads(Path(sys.argv[1]).read_text()):
    try:
        found.append(repr(read_pickle(bytes.fromhex(each))))
    except Exception as exc:
        found.append(type(exc).__name__)
print(json.dumps(found))
"""


def pickles() -> list[bytes]:
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.Linear(300, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model[1](torch.ones(1, 300)).sum().backward()
    optimizer.step()
    shared = torch.arange(70_000)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "views": [shared, shared[3:9:2], shared.view(700, 100).T, torch.tensor(3)],
        "names": OrderedDict([("ä", 1), (2.5, (True, None, b"x", -7, 1 << 70))]),
        "many": {f"layer.{number}": torch.ones(2) for number in range(40)},
    }
    stream = io.BytesIO()
    torch.save(state, stream)
    with zipfile.ZipFile(stream) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        whole = archive.read(name)
    plain = {"a": [1, 2, (3,), {"b": {4, 5}}], "c": "text" * 100}
    return [whole, *(pickle.dumps(plain, protocol) for protocol in range(6))]


def damaged(whole: bytes, count: int) -> list[bytes]:
    laws = random.Random(3)
    found = []
    for _ in range(count):
        content = bytearray(whole)
        for _ in range(laws.randint(1, 3)):
            content[laws.randrange(len(content))] = laws.randrange(256)
        found.append(bytes(content[: laws.randint(1, 2 * len(content))]))
    return found


def read(tmp_path: Path, contents: list[bytes], *, native: str) -> list[str]:
    file = tmp_path / "pickles.json"
    file.write_text(json.dumps([each.hex() for each in contents]))
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(file)],
        env=os.environ | {"MSPROBE_NATIVE": native},
        check=True,
        capture_output=True,
        text=True,
    )
    return list(json.loads(done.stdout))


def test_the_extension_reads_as_python_does(tmp_path: Path) -> None:
    whole = pickles()
    contents = [*whole, *damaged(whole[0], 400), *damaged(whole[3], 100)]
    native, plain = (read(tmp_path, contents, native=value) for value in ("1", "0"))
    assert native == plain
    assert "_rebuild_tensor_v2" in native[0]
    assert native.count("ValueError") > 100
