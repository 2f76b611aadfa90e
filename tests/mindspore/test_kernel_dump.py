# SPDX-License-Identifier: Apache-2.0
"""Level L2: MindSpore's own Dump, driven by msprobe and brought into shape, on the CPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from builders.csv_files import csv_rows
from builders.warm_python import run_warm
from msprobe import open_dump
from msprobe.capture.session import reset_session
from msprobe.config import load_config
from msprobe.dump.kernel_files import find_kernel_folders, read_kernel_values
from msprobe.errors import ConfigError
from msprobe.kernels.code_mapping import map_code
from msprobe.kernels.dump_settings import check_dump_settings
from msprobe.mindspore.kernel_settings import dump_settings

HERE = Path(__file__).parent
FC1 = "MatMul.Default_network-WithLossCell__backbone-Net_fc1-Dense_MatMul-op0.0.forward"
PLAIN: dict[str, list[str]] = {}
# As it is before any test: MindSpore's compiler adds folders of its own, with a `math.py` in one.
ENVIRONMENT = {**os.environ, "GLOG_v": "3", "PYTHONPATH": os.pathsep.join(sys.path)}


def train(config=None, mode="graph", *, bad=False, pause=(), **when):
    options = {
        "config": None if config is None else str(config),
        "mode": mode,
        "train_first": when.get("train_first", False),
        "before_start": when.get("before_start", False),
        "bad": bad,
        "pause": list(pause),
    }
    done = run_warm(HERE / "kernel_script.py", json.dumps(options), env=ENVIRONMENT)
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word == "RESULT":
            return json.loads(rest), done.stderr
        if word == "REFUSED":
            return rest, done.stderr
    raise AssertionError(done.stderr[-3000:])


def plain(mode):
    if mode not in PLAIN:
        PLAIN[mode] = train(None, mode)[0]
    return PLAIN[mode]


def write_config(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps({"level": "L2", "dump_path": str(folder / "dump"), **keys}))
    return path


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensors")
    result, _ = train(write_config(folder, task="tensor", step=[1, 3]))
    return folder / "dump", result


@pytest.fixture(scope="module")
def statistics(tmp_path_factory):
    folder = tmp_path_factory.mktemp("statistics")
    keys = {"task": "statistics", "step": [1, 3], "statistics": {"summary_mode": "md5"}}
    result, _ = train(write_config(folder, **keys))
    return folder / "dump", result


@pytest.mark.parametrize("task", ["tensors", "statistics"])
def test_losses_and_weights_are_the_same_to_the_bit(request, task):
    assert request.getfixturevalue(task)[1] == plain("graph")


def test_the_wanted_steps_and_no_others(tensors):
    dump = open_dump(tensors[0])
    assert list(dump.steps) == [1, 3]
    for step in (1, 3):
        records = dump.step(step).rank(0).records
        assert FC1 in records
        assert any(name.endswith(".backward") for name in records)


def test_each_kernel_computes_what_numpy_computes(tensors):
    view = open_dump(tensors[0]).step(1).rank(0)
    (_, x), (_, w), *_ = view.records[FC1].tensors("input_args")
    ((_, y),) = view.records[FC1].tensors("output")
    x, w, y = (view.tensor(value).array for value in (x, w, y))
    np.testing.assert_allclose(y, x @ w.T, rtol=1e-5, atol=1e-6)


def test_statistics_are_those_of_the_tensors(tensors, statistics):
    folders = {folder.step: folder for folder in find_kernel_folders(tensors[0])}
    rows = csv_rows(folder_of(statistics[0], 3) / "statistic.csv")
    stored = {
        (value.op_name, value.io, value.index): np.load(value.path)
        for value in read_kernel_values(folders[3])
    }
    assert len(rows) == len(stored) > 100
    for row in rows:
        array = stored[row["Op Name"].replace("/", "_"), row["IO"], row["Slot"]]
        wide = array.astype(np.float64)
        assert row["Shape"] == f"({','.join(map(str, array.shape))})"
        assert row["Data Type"].lower() == array.dtype.name
        assert int(row["Data Size"]) == array.nbytes
        if array.dtype.kind == "b":
            assert row["Max Value"] == str(bool(array.max()))
            continue
        assert float(row["Max Value"]) == wide.max()
        assert float(row["Min Value"]) == wide.min()
        assert float(row["Avg Value"]) == pytest.approx(wide.mean(), rel=1e-12, abs=1e-15)
        assert float(row["L2Norm Value"]) == pytest.approx(np.linalg.norm(wide), rel=1e-12)
        assert len(row["MD5"]) == 8


def test_statistics_leave_no_tensors(statistics):
    assert not list(statistics[0].rglob("*.npy"))
    assert open_dump(statistics[0]).step(1).rank(0).head.task == "statistics"


def folder_of(dump, step):
    return next(found.directory for found in find_kernel_folders(dump) if found.step == step)


def test_the_index_names_operators_in_order_with_their_source(tensors):
    folder = folder_of(tensors[0], 1)
    rows = csv_rows(folder / "kernel_index.csv")
    order = (tensors[0] / "rank_0/execution_order/ms_execution_order_graph_0.csv").read_text()
    listed = order.split()[1:]
    kernels = list(dict.fromkeys(row["Full Name"] for row in rows if "/" in row["Full Name"]))
    assert kernels == listed
    first = rows[0]
    assert first["Name"] == FC1
    assert first["Source"].startswith(str(HERE / "kernel_script.py") + ":")
    assert (folder / first["File"]).is_file()
    assert (first["Data Type"], first["Shape"]) == ("Float32", "(3,4)")


def test_kernels_know_their_calls(tensors):
    view = open_dump(tensors[0]).step(1).rank(0)
    assert any("kernel_script.py" in frame for frame in view.frames(FC1))
    backward = next(name for name in view.records if "Grad_MatMul" in name)
    assert any("kernel_script.py" in frame for frame in view.frames(backward))


def test_code_mapping_of_a_real_dump(tensors, tmp_path):
    done = map_code(tensors[0] / "rank_0" / "graphs", tensors[0], tmp_path)
    rows = csv_rows(done.written[0])
    assert len(rows) == done.values == len(list(tensors[0].rglob("Net/**/*.npy")))
    unmapped = {row["File Path"].rpartition("/")[2].split(".")[1] for row in rows
                if not row["Scope Name"]}  # fmt: skip
    assert unmapped == {"global_step", "inputs0", "inputs1", "learning_rate", "momentum"}
    for row in rows:
        if "_fc1-Dense_MatMul-op0" in row["File Path"]:
            assert row["Scope Name"].endswith("/fc1-Dense/MatMul-op0")
            assert "kernel_script.py" in row["Code Stack"]


def test_compiled_parts_of_the_dynamic_graph(tmp_path):
    keys = {"task": "tensor", "step": [2], "tensor": {"list": ["Tanh"]}}
    result, _ = train(write_config(tmp_path, **keys), "pynative")
    assert result == plain("pynative")
    dump = open_dump(tmp_path / "dump")
    assert list(dump.steps) == [2]
    names = [name for name in dump.step(2).rank(0).records if not name.startswith("Parameter")]
    assert names
    assert all("Tanh" in name for name in names)


def test_what_stands_outside_start_and_stop_is_not_kept(tmp_path):
    config = write_config(tmp_path, task="statistics", step=[0, 1])
    train(config, "pynative", pause=[1])
    dump = open_dump(tmp_path / "dump")
    names = {step: set(dump.step(step).rank(0).records) for step in (0, 1)}
    assert any("SGD" in name for name in names[0])
    assert not any("SGD" in name for name in names[1])
    assert any("Tanh" in name for name in names[1])


def test_what_ran_before_start_is_not_kept(tmp_path):
    config = write_config(tmp_path, task="tensor", step=[0, 1])
    train(config, before_start=True)
    dump = open_dump(tmp_path / "dump")
    assert list(dump.steps) == [0, 1]
    for step in (0, 1):
        names = list(dump.step(step).rank(0).records)
        assert FC1 in names
        assert not any(name.startswith("Tanh") for name in names)


def test_long_names_are_resolved(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(LONG)
    done = run_warm(script, tmp_path / "dump", cwd=tmp_path, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    folder = folder_of(tmp_path / "dump", 0)
    assert (folder / "mapping.csv").is_file()
    rows = [row for row in csv_rows(folder / "kernel_index.csv") if row["Name"].startswith("Tanh.")]
    assert [row["IO"] for row in rows] == ["input", "output"]
    for row in rows:
        assert "a" * 240 in row["Full Name"]
        assert row["File"].removesuffix(".npy").isdigit()
        assert (folder / row["File"]).is_file()
    view = open_dump(tmp_path / "dump").step(0).rank(0)
    (name,) = (each for each in view.records if each.startswith("Tanh."))
    (_, x), (_, y) = view.records[name].tensors()
    np.testing.assert_allclose(view.tensor(y).array, np.tanh(view.tensor(x).array), rtol=1e-5)


LONG = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops
from msprobe.mindspore import PrecisionDebugger

ms.set_context(mode=ms.GRAPH_MODE)
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L2", task="tensor")

class Inner(nn.Cell):
    def construct(self, x):
        return ops.tanh(x)

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        setattr(self, "a" * 240, Inner())
    def construct(self, x):
        return self.NAME(x) + 1

debugger.start()
Net()(Tensor(np.ones((2, 3), np.float32))).asnumpy()
debugger.stop()
debugger.step()
""".replace("NAME", "a" * 240)


def test_overflows_keep_the_kernels_that_make_them(tmp_path):
    keys = {"task": "overflow_check", "overflow_check": {"overflow_nums": 2}}
    _, log = train(write_config(tmp_path, **keys), bad=True)
    dump = open_dump(tmp_path / "dump")
    assert list(dump.steps) == [1]
    view = dump.step(1).rank(0)
    assert len(view.records) == 2
    assert FC1 in view.records
    for name in view.records:
        outputs = [view.tensor(value).array for _, value in view.records[name].tensors("output")]
        assert not all(np.isfinite(array).all() for array in outputs)
    assert f"step 1: {FC1} puts out a NaN or an infinity" in log


def test_a_second_run_replaces_the_first(tmp_path):
    config = write_config(tmp_path, task="tensor", step=[0], tensor={"list": ["ReLU"]})
    train(config)
    mine = tmp_path / "dump" / "rank_0" / "Net" / "0" / "0" / "notes.txt"
    mine.write_text("mine")
    before = set((tmp_path / "dump").rglob("ReLU*.npy"))
    train(config)
    after = set((tmp_path / "dump").rglob("ReLU*.npy"))
    assert len(after) == len(before) > 0
    assert not after & before
    assert mine.read_text() == "mine"


def test_too_late_is_refused(tmp_path):
    said, _ = train(write_config(tmp_path, task="tensor"), train_first=True)
    assert said.startswith("UsageError: PrecisionDebugger(): a graph was compiled already")
    assert not (tmp_path / "dump").exists()


def test_ranks_that_are_not_wanted_dump_nothing(tmp_path):
    config = write_config(tmp_path, task="tensor", rank=[1])
    train(config)
    assert not (tmp_path / "dump").exists()


# -- settings, without a run -------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path):
    def of(*, on_device=True, **keys):
        config = load_config(write_config(tmp_path, **keys), dumps_kernels=True)
        found = dump_settings(config, computes_statistics=on_device)
        assert check_dump_settings(found, source="x").faults == []
        return found["common_dump_settings"], found["e2e_dump_settings"]

    yield of
    reset_session()


def test_settings_of_statistics(settings):
    common, synchronous = settings(
        task="statistics",
        step=[0, "5-8", 10],
        rank=[1, 3],
        precision="high",
        statistics={
            "list": ["MatMul", "name-regex(.*fc.*)"],
            "data_mode": ["input"],
            "summary_mode": "md5",
            "device": "device",
        },
    )
    assert common["iteration"] == "0|5-8|10"
    assert common["support_device"] == [1, 3]
    assert (common["dump_mode"], common["kernels"]) == (1, ["MatMul", "name-regex(.*fc.*)"])
    assert common["input_output"] == 1
    assert common["saved_data"] == "statistic"
    assert common["statistic_category"] == ["max", "min", "avg", "l2norm", "hash:md5"]
    assert synchronous == {
        "enable": True,
        "trans_flag": True,
        "stat_calc_mode": "device",
        "device_stat_precision_mode": "high",
    }
    assert settings(task="statistics", on_device=False)[0]["saved_data"] == "tensor"


def test_settings_of_tensors_written_asynchronously(settings):
    common, synchronous = settings(
        task="tensor", async_dump=True, tensor={"file_format": "bin", "data_mode": ["output"]}
    )
    assert synchronous["enable"] is False
    assert (common["file_format"], common["input_output"]) == ("bin", 2)
    assert common["iteration"] == "all"
    assert settings(task="statistics", async_dump=True)[0]["file_format"] == "npy"


@pytest.mark.parametrize(("mode", "number"), [("all", 3), ("aicore", 1), ("atomic", 2)])
def test_settings_of_overflow_checks(settings, mode, number):
    common, _ = settings(
        task="overflow_check", overflow_check={"check_mode": mode, "overflow_nums": 5}
    )
    assert (common["op_debug_mode"], common["overflow_number"]) == (number, 5)


def test_settings_of_exception_dumps(settings):
    common, _ = settings(task="exception_dump", step=[3])
    assert (common["op_debug_mode"], common["file_format"]) == (4, "npy")
    assert common["iteration"] == "all"
    with pytest.raises(ConfigError, match="level"):
        settings(task="exception_dump", level="L1")


RANKS = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Tensor, ops
from mindspore.communication import get_rank, init
from msprobe.mindspore import PrecisionDebugger

ms.set_context(device_target="CPU")
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L2", task=sys.argv[2])
init()

@ms.jit
def double(x):
    return ops.tanh(x) * 2

for _ in range(2):
    debugger.start()
    double(Tensor(np.full((2, 3), 1.0 + get_rank(), np.float32))).asnumpy()
    debugger.stop()
    debugger.step()
"""


@pytest.mark.slow
def test_two_processes_write_two_folders(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(RANKS)
    launcher = Path(sys.executable).with_name("msrun")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [
        str(launcher), "--worker_num=2", "--local_worker_num=2", f"--master_port={port}",
        "--join=True", f"--log_dir={tmp_path / 'logs'}", str(script), str(tmp_path / "dump"),
        "statistics",
    ]  # fmt: skip
    # The launcher starts whatever is called python.
    environment = {**os.environ, "PATH": f"{launcher.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=240, env=environment
    )
    logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("worker*"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert not list((tmp_path / "dump").rglob("*.npy"))
    dump = open_dump(tmp_path / "dump")
    assert list(dump.steps) == [0, 1]
    for step in dump.steps.values():
        assert list(step.ranks) == [0, 1]
        for rank, view in step.ranks.items():
            (name,) = (each for each in view.records if each.startswith("Tanh."))
            ((_, value),) = view.records[name].tensors("input_args")
            assert value.max == 1 + rank


def test_model_train_and_custom_apis(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(CALLBACK)
    done = run_warm(script, tmp_path / "dump", cwd=tmp_path, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "cannot record relu" in done.stdout
    dump = open_dump(tmp_path / "dump")
    assert list(dump.steps) == [4, 6]
    assert all(len(step.rank(0).records) > 20 for step in dump.steps.values())


CALLBACK = """
import sys
import numpy as np
import mindspore as ms
from mindspore import dataset, nn, ops
from msprobe.errors import UsageError
from msprobe.mindspore import MsprobeStep, PrecisionDebugger

ms.set_context(mode=ms.GRAPH_MODE)
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L2", task="tensor", step=[4, 6])
debugger.set_init_step(4)
try:
    debugger.register_custom_api(ops, "relu")
except UsageError as error:
    print(error)
net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 2))
data = dataset.NumpySlicesDataset(
    (np.ones((8, 4), np.float32), np.ones((8, 2), np.float32)), shuffle=False
).batch(2)
model = ms.Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
model.train(1, data, callbacks=[MsprobeStep(debugger)], dataset_sink_mode=False)
"""
