# SPDX-License-Identifier: Apache-2.0
"""Environment, secrets, packages and system of a run."""

from __future__ import annotations

import os
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from msprobe.run_config.environment import (
    classify_variable,
    collect_environment,
    compare_environments,
)
from msprobe.run_config.levels import Level
from msprobe.run_config.packages import collect_packages, compare_packages, package_level
from msprobe.run_config.secrets import hide_secrets
from msprobe.run_config.system import collect_system, compare_systems


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GITHUB_TOKEN", "abcdef"),
        ("WANDB_API_KEY", "0123456789abcdef"),
        ("DB_PASSWORD", "hunter2"),
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI"),
        ("wandb-api-key", "xyz-xyz"),
        ("apikey", "x-y-z"),
        ("awsSecretKey", "wJalr"),
        ("SSH_PRIVATE", "-----BEGIN"),
        ("HTTPS_AUTH", "me:pw"),
        ("MYSQL_PWD", "hunter2"),
        ("SSHPASS", "hunter2"),
        ("PGPASSWORD", "hunter2"),
        ("LDAP_BIND_PW", "hunter2"),
        ("SLACK_WEBHOOK_URL", "https://hooks.example/T0/B1/x"),
        ("MYTOKEN", "x1y2"),
        ("api_keys", "['prod.alpha']"),
        ("signing_keys", "prod.alpha"),
        ("keys", "['hunter2', 'x1y2']"),
        ("token", "prod.alpha"),
        ("BUILD_INFO", "aG9sYQ7xP2mN9qR4sT6uV8w0"),
        ("THING", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEX4MPL3K3Y"),
        ("THING", "k3j9x8q2m5n7b1v4c6z0"),
        ("THING", "0123456789abcdef0123456789abcdef"),
    ],
)
def test_secrets_are_hidden_but_still_compare(name: str, value: str) -> None:
    hidden = hide_secrets(name, value)
    assert value not in hidden
    assert hidden.startswith("<hidden ")
    assert hidden == hide_secrets(name, value)
    assert hidden != hide_secrets(name, value + "x")


@pytest.mark.parametrize(
    ("name", "value", "left", "gone"),
    [
        ("HTTP_PROXY", "http://me:pw12@proxy:80/x", "@proxy:80/x", "pw12"),
        ("ARGS", "--use sk-abcdefghijklmnop123 --lr 1", "--lr 1", "abcdefghijklmnop"),
        ("NOTE", "hf_ABCDEFGHIJKLMNOPQRST", "", "ABCDEFGHIJ"),
    ],
)
def test_secrets_inside_other_values_are_hidden(name, value, left, gone) -> None:
    hidden = hide_secrets(name, value)
    assert left in hidden
    assert gone not in hidden


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("tokenizer_path", "/models/tok"),
        ("num_key_value_heads", "8"),
        ("num-key-value-heads", "eight"),
        ("pad_token", "<pad>"),
        ("eos_token_id", "2"),
        ("max_tokens", "4096"),
        ("MONKEY", "banana"),
        ("PWD", "/home/me"),
        ("TOKEN_COUNT", "77"),
        ("OLDPWD", "/home/me/secret"),
        ("model.all_tied_weights_keys", "{'lm_head.weight': 'model.embed_tokens.weight'}"),
        ("model._tied_weights_keys", "['lm_head.weight']"),
        ("_keys_to_ignore_on_load_missing", r"['h.*.attn.masked_bias', 'lm_head\.weight']"),
        ("keys_to_ignore_at_inference", "past_key_values"),
        ("tied_keys", "[]"),
        ("PWD", "~/work"),
        ("BYPASS_CACHE", "always"),
        ("COMPASS", "north"),
        ("GIT_COMMIT", "0123456789abcdef0123456789abcdef01234567"),
        ("PYTHON_SHA256", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"),
        ("RUN_UUID", "9b2fd7ce-5a55-4c21-8c24-0c6a5f0a7c11"),
        ("CLASS", "LlamaForCausalLMWithValueHeadV2"),
        ("MODEL", "meta-llama/Llama-2-7b-chat-hf"),
        ("DATA", "/data/tmpA1b2C3d4E5f6G7h8I9j0/x"),
        ("FILE", "checkpoints/step1000/model0001of0002"),
        ("STARTED", "20261123T032233"),
        ("LS_COLORS", "rs=0:di=01;34:ln=01;36:mh=00:pi=40;33"),
    ],
)
def test_what_only_sounds_like_a_secret_is_kept(name: str, value: str) -> None:
    assert hide_secrets(name, value) == value


def test_the_whole_environment_is_collected() -> None:
    found = collect_environment()
    assert found.keys() == os.environ.keys()
    assert list(found) == sorted(found)


@pytest.mark.parametrize(
    ("name", "category", "level"),
    [
        ("HCCL_DETERMINISTIC", "determinism", Level.ERROR),
        ("CUBLAS_WORKSPACE_CONFIG", "determinism", Level.ERROR),
        ("NVIDIA_TF32_OVERRIDE", "precision", Level.ERROR),
        ("NCCL_ALGO", "communication", Level.ERROR),
        ("NCCL_DEBUG", "communication", Level.WARNING),
        ("ASCEND_RT_VISIBLE_DEVICES", "device", Level.ERROR),
        ("OMP_NUM_THREADS", "threads", Level.WARNING),
        ("LD_LIBRARY_PATH", "libraries", Level.WARNING),
        ("WORLD_SIZE", "job", Level.WARNING),
        ("MASTER_PORT", "job", Level.INFO),
        ("PYTORCH_CUDA_ALLOC_CONF", "framework", Level.WARNING),
        ("EDITOR", "other", Level.INFO),
    ],
)
def test_variables_are_classified(name: str, category: str, level: Level) -> None:
    assert classify_variable(name) == (category, level)


def test_environments_are_compared_with_their_defaults() -> None:
    bench = {"HCCL_DETERMINISTIC": "False", "NCCL_ALGO": "Ring", "EDITOR": "vi", "SAME": "1"}
    cmp = {"CUDA_LAUNCH_BLOCKING": "1", "EDITOR": "ed", "SAME": "1"}
    found = compare_environments(bench, cmp)
    assert [(each.name, each.level) for each in found.differences] == [
        ("CUDA_LAUNCH_BLOCKING", Level.ERROR),
        ("NCCL_ALGO", Level.ERROR),
        ("EDITOR", Level.INFO),
    ]
    assert found.columns[:5] == (
        "bench_env_name",
        "cmp_env_name",
        "bench_value",
        "cmp_value",
        "level",
    )
    assert found.rows[1][:5] == ("NCCL_ALGO", "NCCL_ALGO", "Ring", "None", "error")
    assert compare_environments({"EDITOR": "vi"}, {}).level is Level.PASS


def test_all_packages_are_collected_with_their_versions() -> None:
    found = collect_packages()
    assert found["numpy"].startswith(metadata.version("numpy"))
    assert found["typing-extensions"].startswith(metadata.version("typing_extensions"))
    assert len(found) >= 20


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("torch", Level.ERROR),
        ("megatron-core", Level.ERROR),
        ("nvidia-cublas-cu12", Level.ERROR),
        ("tokenizers", Level.WARNING),
        ("requests", Level.INFO),
    ],
)
def test_packages_have_a_weight(name: str, level: Level) -> None:
    assert package_level(name) is level


def test_packages_are_compared_by_normalised_names() -> None:
    found = compare_packages(
        {"torch": "2.1", "PyYAML": "6", "Flash_Attn": "2", "only": "1"},
        {"torch": "2.2", "pyyaml": "6", "flash-attn": "2"},
    )
    assert found.rows == [("torch", "2.1", "2.2", "error"), ("only", "1", "None", "info")]


@pytest.mark.usefixtures("git_repositories")
def test_the_system_names_python_and_the_commit(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@e"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    found = collect_system(tmp_path)
    assert found["git.commit"] == commit
    assert found["git.changes"] == "none"
    assert found["python"].count(".") == 2
    assert int(found["cpu.count"]) >= 1


def test_systems_are_compared_by_weight() -> None:
    found = compare_systems(
        {"os": "a", "python": "3.11", "git.commit": "1", "machine": "x"},
        {"os": "b", "python": "3.12", "git.commit": "2", "machine": "x"},
    )
    assert [(each.name, each.level) for each in found.differences] == [
        ("git.commit", Level.ERROR),
        ("python", Level.WARNING),
        ("os", Level.INFO),
    ]
