# SPDX-License-Identifier: Apache-2.0
"""Everything that msprobe refuses, and the sentence it refuses it with."""

from __future__ import annotations

import json

import pytest

from msprobe.config import Task, load_config
from msprobe.errors import ConfigError, MsprobeError

LINEAR = "Functional.linear.0.forward"
MODULE = "Module.fc.Linear.forward.0"
TASKS = "use one of " + ", ".join(task for task in Task if task != Task.EXCEPTION_DUMP)
LEVELS = "use one of L0, L1, L2, mix, debug"
API_RULE = "use an API name such as Functional.linear.0.forward"
MODULE_RULE = "use a module name such as Module.fc.Linear.forward.0"

# file content, key path, how the sentence goes on after the key
REFUSED_CONFIGS = [
    ({"task": "statistic"}, "task", f'is "statistic"; {TASKS}'),
    ({"task": "Tensor"}, "task", f'is "Tensor"; {TASKS} (write "tensor")'),
    ({"task": 3}, "task", f"is 3; {TASKS}"),
    ({"task": ["tensor"]}, "task", f'is ["tensor"]; {TASKS}'),
    ({"task": "run_ut"}, "task", '("run_ut" is not a capture task: it checks the APIs of a finish'),
    ({"task": "acc_check"}, "task", '("acc_check" is not a capture task: it checks the APIs of a'),
    ({"task": "exception_dump"}, "task", "is not a capture task: use overflow_check"),
    ({"task": "nan_check", "nan_check": {"near_overflow": 2}}, "nan_check.near_overflow", "is 2"),
    (
        {"task": "nan_check", "nan_check": {"stop_on": "x"}},
        "nan_check.stop_on",
        "first_source, never",
    ),
    (
        {"task": "free_benchmark", "level": "L0"},
        "level",
        'is "L0"; use one of L1, mix (task free_benchmark does not work at level L0)',
    ),
    (
        {"task": "free_benchmark", "free_benchmark": {"mode": "noise"}},
        "free_benchmark.mode",
        'is "noise"; use one of high_precision, ulp_noise, relative_noise, permute, rerun, cpu',
    ),
    (
        {"task": "free_benchmark", "free_benchmark": {"handler_type": "fix"}},
        "free_benchmark.handler_type",
        'is "fix"; use "check", or "fix" with high_precision or cpu_reference (with "ulp_noise" ',
    ),
    (
        {"task": "free_benchmark", "free_benchmark": {"fuzz_device": "cpu"}},
        "free_benchmark.fuzz_device",
        'is "cpu"; use "same" or "npu", the device where the call ran (the mode is "ulp_noise"',
    ),
    (
        {
            "task": "free_benchmark",
            "free_benchmark": {"pert_mode": "to_cpu", "fuzz_device": "npu"},
        },
        "free_benchmark.fuzz_device",
        'is "npu"; use "cpu" (the mode is "to_cpu"',
    ),
    (
        {"task": "free_benchmark", "free_benchmark": {"mode": "rerun", "pert_mode": "to_cpu"}},
        "free_benchmark.mode",
        'is "rerun"; use the same as "pert_mode", which is "to_cpu"',
    ),
    (
        {"task": "free_benchmark", "free_benchmark": {"if_preheat": "yes"}},
        "free_benchmark.if_preheat",
        'is "yes"',
    ),
    (
        {
            "task": "free_benchmark",
            "free_benchmark": {"if_preheat": True, "fuzz_stage": "backward"},
        },
        "free_benchmark.if_preheat",
        'is true; use false, or true with handler_type "check" and fuzz_stage "forward"',
    ),
    ({"task": "diff_check"}, "diff_check.reference", "it is missing"),
    (
        {"task": "diff_check", "diff_check": {"reference": "gone"}},
        "diff_check.reference",
        "no such",
    ),
    ({"level": "l1"}, "level", f'is "l1"; {LEVELS} (write "L1")'),
    ({"level": "MIX"}, "level", f'is "MIX"; {LEVELS} (write "mix")'),
    ({"level": "L3"}, "level", f'is "L3"; {LEVELS}'),
    ({"level": 0}, "level", f"is 0; {LEVELS}"),
    ({"level": True}, "level", f"is true; {LEVELS}"),
    (
        {"task": "overflow_check", "level": "debug"},
        "level",
        'is "debug"; use one of L0, L1, L2, mix (task overflow_check does not work at level debug)',
    ),
    ({"dump_path": 5}, "dump_path", "is 5; use the path of the output folder"),
    ({"dump_path": []}, "dump_path", "is []; use the path of the output folder"),
    ({"dump_path": " "}, "dump_path", 'is " "; use the path of the output folder'),
    ({"dump_path": "a\0"}, "dump_path", "is "),
    ({"dump_path": None}, "dump_path", "it is missing: give it in the file or as the argument"),
    ({"dump_path": ""}, "dump_path", 'is ""; use the path of the output folder'),
    ({"rank": 4}, "rank", "is 4; use a list of numbers and ranges"),
    ({"rank": "4-6"}, "rank", 'is "4-6"; use a list of numbers and ranges'),
    ({"rank": {}}, "rank", "is {}; use a list of numbers and ranges"),
    ({"rank": [True]}, "rank[0]", "is true; use a whole number or a range"),
    ({"rank": [0, 1.0]}, "rank[1]", "is 1.0; use a whole number or a range"),
    ({"rank": [-1]}, "rank[0]", "is -1; use a whole number or a range"),
    ({"rank": [None]}, "rank[0]", "is null; use a whole number or a range"),
    ({"rank": [1_000_001]}, "rank[0]", "from 0 to 1000000"),
    ({"step": ["a"]}, "step[0]", 'is "a"; use a whole number or a range'),
    ({"step": ["4-"]}, "step[0]", 'is "4-"; use a whole number or a range'),
    ({"step": ["-4"]}, "step[0]", 'is "-4"; use a whole number or a range'),
    ({"step": ["1-2-3"]}, "step[0]", 'is "1-2-3"; use a whole number or a range'),
    ({"step": "", "rank": []}, "step", 'is ""; use a list of numbers and ranges'),
    ({"enable_dataloader": 1}, "enable_dataloader", "is 1; use true or false"),
    ({"async_dump": "true"}, "async_dump", 'is "true"; use true or false'),
    ({"extra_info": 0}, "extra_info", "is 0; use true or false"),
    ({"dump_enable": "on"}, "dump_enable", 'is "on"; use true or false'),
    ({"record_rng": []}, "record_rng", "is []; use true or false"),
    ({"record_recompute": {}}, "record_recompute", "is {}; use true or false"),
    ({"precision": "High"}, "precision", 'is "High"; use one of low, high (write "high")'),
    ({"precision": 64}, "precision", "is 64; use one of low, high"),
    ({"risk_level": "core"}, "risk_level", 'use one of CORE, FOCUS, ALL (write "CORE")'),
    ({"compile": "inductor"}, "compile", 'is "inductor"; use one of eager, modules_only'),
    ({"custom_op_namespaces": "a"}, "custom_op_namespaces", 'is "a"; use a list of strings (put'),
    ({"custom_op_namespaces": ["a", 1]}, "custom_op_namespaces[1]", "is 1; use a string"),
    ({"custom_op_namespaces": ["a.b"]}, "custom_op_namespaces[0]", "use a namespace of torch.ops"),
    ({"api_list": "no.yaml"}, "api_list", 'is "no.yaml"; use the path of an existing YAML file'),
    ({"api_list": "."}, "api_list", "use the path of an existing YAML file"),
    ({"api_list": "\0"}, "api_list", "is "),
    ({"api_list": {"torch": []}}, "api_list", 'is {"torch": []}; use a string'),
    ({"statistics": None}, "statistics", "is null; use an object {…}"),
    ({"statistics": []}, "statistics", "is []; use an object {…}"),
    ({"statistics": 3}, "statistics", "is 3; use an object {…}"),
    ({"task": "tensor", "tensor": "x"}, "tensor", 'is "x"; use an object {…}'),
    ({"task": "structure", "structure": False}, "structure", "is false; use an object {…}"),
    ({"statistics": {"scope": LINEAR}}, "statistics.scope", "use a list of strings (put it in sq"),
    ({"statistics": {"scope": [LINEAR]}}, "statistics.scope", "an empty list or exactly two"),
    ({"statistics": {"scope": [LINEAR] * 3}}, "statistics.scope", "an empty list or exactly two"),
    ({"statistics": {"scope": [LINEAR, 3]}}, "statistics.scope[1]", "is 3; use a string"),
    ({"statistics": {"scope": [LINEAR, None]}}, "statistics.scope[1]", "is null; use a string"),
    (
        {"statistics": {"scope": [LINEAR, MODULE]}},
        "statistics.scope[1]",
        f'is "{MODULE}"; {API_RULE} (module names need level L0 or mix)',
    ),
    ({"statistics": {"scope": ["linear", LINEAR]}}, "statistics.scope[0]", f'"linear"; {API_RULE}'),
    ({"statistics": {"scope": [LINEAR, ""]}}, "statistics.scope[1]", f'is ""; {API_RULE}'),
    (
        {"statistics": {"scope": [LINEAR, "Functional.linear.forward"]}},
        "statistics.scope[1]",
        API_RULE,
    ),
    ({"statistics": {"scope": [LINEAR + ".input.0", LINEAR]}}, "statistics.scope[0]", API_RULE),
    (
        {"level": "L0", "statistics": {"scope": [MODULE, LINEAR]}},
        "statistics.scope[1]",
        f'is "{LINEAR}"; {MODULE_RULE} (API names need level L1 or mix)',
    ),
    (
        {"level": "L0", "statistics": {"scope": ["Module.fc.Linear.0.forward", MODULE]}},
        "statistics.scope[0]",
        MODULE_RULE,
    ),
    (
        {"level": "mix", "statistics": {"scope": [LINEAR, "Module.fc.Linear.forward"]}},
        "statistics.scope[1]",
        f"{API_RULE} or {MODULE_RULE.removeprefix('use ')}",
    ),
    ({"statistics": {"list": "relu"}}, "statistics.list", 'is "relu"; use a list of strings (put'),
    ({"statistics": {"list": [["a"]]}}, "statistics.list[0]", 'is ["a"]; use a string'),
    ({"statistics": {"tensor_list": [1]}}, "statistics.tensor_list[0]", "is 1; use a string"),
    ({"statistics": {"black_list": {}}}, "statistics.black_list", "is {}; use a list of strings"),
    ({"statistics": {"data_mode": "all"}}, "statistics.data_mode", 'is "all"; use a list of words'),
    (
        {"statistics": {"data_mode": ["all", "input"]}},
        "statistics.data_mode",
        'is ["all", "input"]; use ["all"] alone, or the other words without it',
    ),
    ({"statistics": {"data_mode": ["all"] * 2}}, "statistics.data_mode", 'use ["all"] alone'),
    (
        {"statistics": {"data_mode": ["forwards"]}},
        "statistics.data_mode[0]",
        'is "forwards"; use one of all, forward, backward, input, output',
    ),
    ({"statistics": {"data_mode": [0]}}, "statistics.data_mode[0]", "is 0; use one of all, forw"),
    (
        {"statistics": {"summary_mode": "xor"}},
        "statistics.summary_mode",
        'is "xor"; use one of statistics, md5 (md5 tells bit equality on any device)',
    ),
    ({"statistics": {"summary_mode": ["max"]}}, "statistics.summary_mode", 'is ["max"]; use one'),
    ({"statistics": {"summary_mode": ""}}, "statistics.summary_mode", 'is ""; use one of'),
    ({"statistics": {"device": "npu"}}, "statistics.device", 'is "npu"; use one of host, device'),
    ({"statistics": {"slice": {}}}, "statistics.slice", "is {}; use a list of objects {…}"),
    ({"statistics": {"slice": [3]}}, "statistics.slice[0]", "is 3; use an object {…}"),
    ({"statistics": {"slice": [{"dim": -1}]}}, "statistics.slice[0].dim", "a whole number >= 0"),
    ({"statistics": {"slice": [{"dim": True}]}}, "statistics.slice[0].dim", "is true; use a whole"),
    ({"statistics": {"slice": [{}, {"size": "8"}]}}, "statistics.slice[1].size", 'is "8"; use a'),
    ({"statistics": {"slice": [{"size": -8}]}}, "statistics.slice[0].size", "is -8; use a whole"),
    ({"statistics": {"slice": [{"end": 1.5}]}}, "statistics.slice[0].end", "is 1.5; use a whole"),
    ({"statistics": {"slice": [{"end": 0}]}}, "statistics.slice[0]", "smaller than the end"),
    (
        {"statistics": {"slice": [{"begin": 5, "end": 5}]}},
        "statistics.slice[0]",
        'is {"begin": 5, "end": 5}; use a begin that is smaller than the end',
    ),
    ({"statistics": {"slice": [{"begin": 2**63}]}}, "statistics.slice[0].begin", "of at most"),
    (
        {"task": "tensor", "tensor": {"file_format": "pt"}},
        "tensor.file_format",
        'is "pt"; use one of npy, bin',
    ),
    *(
        (
            {"task": "overflow_check", "overflow_check": {"overflow_nums": number}},
            "overflow_check.overflow_nums",
            f"is {number}; use a whole number >= 1, or -1 to never stop",
        )
        for number in (0, -2)
    ),
    (
        {"task": "overflow_check", "overflow_check": {"overflow_nums": True}},
        "overflow_check.overflow_nums",
        "is true; use a whole number",
    ),
    (
        {"task": "overflow_check", "overflow_check": {"check_mode": "some"}},
        "overflow_check.check_mode",
        'is "some"; use one of all, aicore, atomic',
    ),
]


@pytest.mark.parametrize(
    ("content", "key", "words"),
    REFUSED_CONFIGS,
    ids=[json.dumps(row[0]) for row in REFUSED_CONFIGS],
)
def test_refused_configurations(tmp_path, content, key, words):
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"dump_path": "dump", **content}))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    error = caught.value
    assert isinstance(error, MsprobeError)
    assert isinstance(error, ValueError)
    assert (error.key, error.source) == (key, str(path))
    message = str(error)
    assert message.startswith(f'{path}: "{key}" is ')
    assert words in message
    assert "\n" not in message


def test_a_refused_value_of_any_size_gives_a_message_of_one_screen(tmp_path):
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"level": ["x" * 100] * 1000}))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert len(str(caught.value)) < 500 + len(str(path))
    assert len(caught.value.found) == 1000
