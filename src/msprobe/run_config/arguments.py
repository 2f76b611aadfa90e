# SPDX-License-Identifier: Apache-2.0
"""Read hyperparameters from shell scripts, YAML, JSON or a namespace, and compare them by name."""

from __future__ import annotations

import ast
import configparser
import dataclasses
import hashlib
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from msprobe.dump.records import JsonTree
from msprobe.errors import ConfigFileError
from msprobe.files import reading
from msprobe.json_text import JSON_ERRORS, json_problem, parse_json
from msprobe.run_config.command_options import SETTINGS_FILES
from msprobe.run_config.environment import may_matter
from msprobe.run_config.levels import Difference, Item, ItemResult, Level
from msprobe.run_config.live_objects import described_settings
from msprobe.run_config.secrets import hide_secrets
from msprobe.run_config.shell_commands import Statement
from msprobe.run_config.shell_scripts import parse_shell_script, without_secrets
from msprobe.run_config.shell_variables import shortened

COLUMNS: Final = (
    "file_name",
    "bench_para",
    "cmp_para",
    "bench_value",
    "cmp_value",
    "matched_with",
    "level",
)
_MAX_BYTES: Final = 8 << 20
_MAX_ENTRIES: Final = 100_000
_SIMILAR: Final = 0.8
_MAX_SHOWN_FILE: Final = 80
# Comparing all leftovers with each other takes the square of their number.
_MAX_COMPARED_BY_SIMILARITY: Final = 400
# These say where results go and how a run is called, and change no number.
_RESULTS: Final = (
    "outputs?|out|logs?|logging|tensorboard|tb|wandb|mlflow|runs?|exp|experiment|job|project|"
    "results?|profiler?|save|dump"
)
# What a scheduler is asked for in comments, and what does not change what is computed.
_SCHEDULER: Final = (
    r"(sbatch|pbs|bsub|cobalt|pjm|qsub)\.(l\.)?(job_name|output|error|time|account|mail_type|mail_user|"
    r"begin|dependency|requeue|open_mode|chdir|parsable|wait|signal|walltime|[JoetAMmdDWuBP])|pbs\.N"
)
_LETTER: Final = re.compile(r"(.*[.:])?[A-Za-z]")
_WITHOUT_INFLUENCE: Final = re.compile(
    # A bare "out" behind something else is a size: drop_out, dim_out.
    rf"(.*[._])?({_RESULTS})[._]?(dir|directory|path|file|folder|root|name|id|to|tag)|"
    rf"{_RESULTS}|o|name|{_SCHEDULER}|"
    r"(.*[._])?(report_to|tags?|comment|verbose|log_level.*|disable_tqdm|push_to_hub|hub_.*|"
    r"save_(steps|strategy|total_limit|interval|freq|every)|(log|logging|print)_(steps|strategy|"
    r"interval|freq|every|first_step)|master_(port|addr)|port|host|hostname|rdzv_.*|local_rank|"
    r"device_index|run_id)|(stdbuf|nice|ionice)\..*"
)
_DUPLICATE: Final = "duplicate_value"

# Names of one thing in different programs.
_ALIASES: Final = tuple(
    frozenset(names.split())
    for names in (
        "lr learning_rate learningrate base_lr max_lr",
        "min_lr lr_min minimum_learning_rate",
        "bs batch batch_size batchsize micro_batch_size per_device_train_batch_size",
        "gbs global_batch_size",
        "wd weight_decay weightdecay",
        "seq_len seq_length sequence_length max_seq_len max_length",
        "num_layers n_layer n_layers num_hidden_layers",
        "hidden_size n_embd d_model hidden_dim",
        "ffn_hidden_size intermediate_size n_inner",
        "num_attention_heads n_head n_heads num_heads",
        "num_query_groups num_key_value_heads n_kv_heads",
        "tp tensor_model_parallel_size tensor_parallel_size",
        "pp pipeline_model_parallel_size pipeline_parallel_size",
        "ep expert_model_parallel_size expert_parallel_size",
        "cp context_parallel_size",
        "clip_grad max_grad_norm grad_clip gradient_clip_val",
        "warmup lr_warmup_iters warmup_steps num_warmup_steps",
        "train_iters max_steps total_steps",
        "epochs num_epochs num_train_epochs",
        "beta1 adam_beta1",
        "beta2 adam_beta2",
        "eps adam_eps adam_epsilon",
        "dropout hidden_dropout hidden_dropout_prob",
        "attention_dropout attention_probs_dropout_prob attn_dropout",
        "norm_epsilon layernorm_epsilon rms_norm_eps layer_norm_eps",
        "grad_accum gradient_accumulation_steps accumulate_grad_batches",
        "seed random_seed",
        "vocab_size padded_vocab_size",
    )
)


class ArgumentFiles(NamedTuple):
    """Arguments in files.

    Attributes:
        arguments: flat; a name with several values holds all of them.
        unresolved: why an argument is not known for sure, or what could not be followed.
        statements: of each launch script, what is compared as text.
    """

    arguments: dict[str, JsonTree]
    unresolved: dict[str, str]
    statements: Mapping[str, list[Statement]] = {}


def read_arguments(paths: Iterable[Path]) -> ArgumentFiles:
    """Return the arguments in files, and in the files that these name.

    Args:
        paths: ``.sh``, ``.yaml``, ``.yml`` or ``.json`` files.

    Raises:
        ConfigFileError: a file cannot be read, or is of another kind.
    """
    found: dict[str, list[JsonTree]] = {}
    unresolved: dict[str, str] = {}
    statements: dict[str, list[Statement]] = {}
    for path in paths:
        arguments, reasons, others = _read_file(path)
        statements |= others
        unresolved |= {name: f"{path.name}: {reason}" for name, reason in reasons.items()}
        arguments |= settings_in_files(arguments, path.parent)
        were_read = _files_that_were_read(arguments)
        for name, value in arguments.items():
            if name not in were_read and not _is_no_settings(name):
                files = [
                    text
                    for text in _texts(value)
                    if text.endswith(SETTINGS_FILES) and "*" not in text
                ]
                for file in files[:1]:
                    unresolved[f"{name}:"] = f"{path.name}: the file {file} was not read"
            values = found.setdefault(name, [])
            if not any(same_value(value, other) for other in values):
                values.append(value)
    arguments = {
        name: values[0] if len(values) == 1 else {"description": _DUPLICATE, "values": values}
        for name, values in found.items()
    }
    return ArgumentFiles(arguments, unresolved, statements)


def settings_in_files(
    arguments: Mapping[str, JsonTree], folder: Path | None = None
) -> dict[str, JsonTree]:
    """Return the contents of the settings files that arguments name, under ``option:key``.

    Args:
        arguments: the arguments.
        folder: where relative paths start, if there is no such file in the current one; None for
            arguments of a program that runs: of these only files of settings are read.
    """
    found: dict[str, JsonTree] = {}
    folders = [Path(), folder or Path()]
    for name, value in arguments.items():
        for text in () if _is_no_settings(name) else _texts(value):
            for path in _candidates(name, text, arguments, folders):
                with suppress(ConfigFileError, OSError, ValueError):
                    is_settings = path.suffix in SETTINGS_FILES and path.suffix != ".py"
                    if path.is_file() and (folder is not None or is_settings):
                        found |= {f"{name}:{key}": item for key, item in _contents(path).items()}
                        break
    return found


def _texts(value: JsonTree) -> list[str]:
    return [item for item in (value if isinstance(value, list) else [value]) if type(item) is str]


def _is_no_settings(name: str) -> bool:
    """Return whether a file that an argument names is the program, or where results go."""
    return _last(name) in ("script", "code", "stdin", "launcher") or has_no_influence(name)


def _candidates(
    name: str, text: str, arguments: Mapping[str, JsonTree], folders: Sequence[Path]
) -> Iterator[Path]:
    """Yield where the file that an argument names may lie; Hydra's are named without their end."""
    if normal_name(_last(name)) != "config_name":
        yield from (folder / text for folder in dict.fromkeys(folders))
        return
    given = [
        str(value)
        for other, value in arguments.items()
        if normal_name(_last(other)) in ("config_path", "config_dir")
    ]
    for place in given or (".", "conf", "config", "configs"):
        for folder in folders:
            yield folder / place / (text if text.endswith(SETTINGS_FILES) else f"{text}.yaml")


def _contents(path: Path) -> dict[str, JsonTree]:
    """Return the settings in a file; of one of another kind its text, or a digest of it."""
    if path.name.endswith((*SETTINGS_FILES, ".sh")):
        return _read_file(path).arguments
    content = path.read_bytes() if path.stat().st_size <= _MAX_BYTES else b""
    if not content:
        return {}
    text = content.decode(errors="replace").strip()
    is_short = len(text) <= _MAX_SHOWN_FILE and text.isprintable()
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    return {"content": _safe("", text) if is_short else f"digest {digest}"}


def flat_arguments(tree: object) -> dict[str, JsonTree]:
    """Return a nested mapping with names joined by dots; secrets hidden, other objects as text.

    Lists of plain values stay lists.
    """
    found: dict[str, JsonTree] = {}
    for name, value in _flatten("", tree, 0):
        if len(found) >= _MAX_ENTRIES:
            break
        found[name] = _safe(name, value)
    return found


def _safe(name: str, value: JsonTree) -> JsonTree:
    if isinstance(value, list):
        return [_safe(name, item) for item in value]
    return hide_secrets(name, value) if isinstance(value, str) else value


def same_value(one: JsonTree, other: JsonTree) -> bool:
    """Return whether two values are the same; ``1e-4`` and ``0.0001`` are, and text of them too."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
    return bool(_plain(one) == _plain(other))


class _Pairing(StrEnum):
    """Way in which two names were paired, in the words of the table."""

    NAME = "pure name"
    ALIAS = "alias"
    SIMILARITY = "similarity"
    ONLY_BENCH = "only in the benchmark"
    ONLY_CMP = "only in the run"


class _Pair(NamedTuple):
    bench: str | None
    cmp: str | None
    pairing: _Pairing


def compare_arguments(
    file_name: str, bench: Mapping[str, JsonTree], cmp: Mapping[str, JsonTree]
) -> ItemResult:
    """Compare two flat sets of arguments.

    Names pair if they are equal (apart from case and dashes), known aliases, or similar.

    Args:
        file_name: their file in the pack, for the table.
        bench: those of the trusted run.
        cmp: those of the run under test.
    """
    pairs = _pair_names(list(bench), list(cmp))
    were_read = _files_that_were_read(bench) & _files_that_were_read(cmp)
    differences: list[Difference] = []
    rows: list[tuple[str, ...]] = []
    for pair in pairs:
        one = None if pair.bench is None else bench[pair.bench]
        other = None if pair.cmp is None else cmp[pair.cmp]
        is_one_sided = pair.bench is None or pair.cmp is None
        is_same = not is_one_sided and same_value(one, other)
        if is_same and pair.pairing is not _Pairing.SIMILARITY:  # a similar name is another one
            continue
        name = pair.cmp or pair.bench or ""
        level = Level.WARNING if is_one_sided or is_same else Level.ERROR
        if has_no_influence(name) or name in were_read:
            level = Level.INFO
        texts = [
            None if key is None else _text(value)
            for key, value in ((pair.bench, one), (pair.cmp, other))
        ]
        note: str = "" if pair.pairing is _Pairing.NAME else pair.pairing
        if pair.bench and pair.cmp and pair.bench != pair.cmp:
            note = f"{pair.bench} in the benchmark, by {pair.pairing}"
        differences.append(
            Difference(
                item=Item.ARGUMENTS,
                name=name,
                bench=texts[0],
                cmp=texts[1],
                level=level,
                note=note,
            )
        )
        cells = (pair.bench, pair.cmp, *texts)
        rows.append((file_name, *(cell or "None" for cell in cells), pair.pairing, level.value))
    return ItemResult(
        item=Item.ARGUMENTS,
        columns=COLUMNS,
        rows=list(rows),
        differences=differences,
        compared=len(pairs),
    )


def _read_file(path: Path) -> ArgumentFiles:
    with reading(path, ConfigFileError):
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigFileError(path, f"is larger than {_MAX_BYTES >> 20} MB")
        text = path.read_bytes()
    suffix = path.suffix.lower()
    if suffix in (".sh", ".bash"):
        script = parse_shell_script(text.decode(errors="replace"), path.parent)
        arguments, unresolved = flat_arguments(script.arguments), script.unresolved
        unread = dict(script.files)
        for name, value in tuple(arguments.items()):
            if isinstance(value, str) and value.endswith(SETTINGS_FILES) and name in script.read:
                try:
                    written = _settings(path.parent / value, script.read[name].encode())
                except ConfigFileError as exc:
                    unresolved[f"file {value}"] = str(exc)
                else:
                    unread.pop(value, None)
                    arguments |= {f"{name}:{key}": item for key, item in written.items()}
        others = [
            one._replace(text=shortened(without_secrets(one.text))) for one in unread.values()
        ]
        return ArgumentFiles(arguments, unresolved, {path.name: [*script.statements, *others]})
    return ArgumentFiles(_settings(path, text), {})


def _settings(path: Path, text: bytes) -> dict[str, JsonTree]:
    suffix = path.suffix.lower()
    if suffix == ".json":
        try:
            return flat_arguments(parse_json(text))
        except JSON_ERRORS as exc:
            raise ConfigFileError(path, json_problem(exc)) from exc
    if suffix in (".yaml", ".yml"):
        return flat_arguments(_read_yaml(path, text))
    if suffix == ".toml":
        try:
            return flat_arguments(tomllib.loads(text.decode()))
        except ValueError as exc:
            raise ConfigFileError(path, str(exc)) from exc
    if suffix in (".ini", ".cfg"):
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read_string(f"[.]\n{text.decode()}")
        except (configparser.Error, ValueError) as exc:
            raise ConfigFileError(path, str(exc).splitlines()[0]) from exc
        sections = {name: dict(parser[name]) for name in parser.sections()}
        return flat_arguments(sections.pop(".") | sections)
    if suffix == ".py":
        return flat_arguments(_python_settings(path, text))
    ends = ".sh, .yaml, .yml, .toml, .ini, .cfg, .py or .json"
    raise ConfigFileError(path, f"is of no kind that is read; use {ends}")


def _python_settings(path: Path, text: bytes) -> dict[str, JsonTree]:
    """Return the assignments of a settings file in Python, and a digest of its other code."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as exc:
        raise ConfigFileError(path, f"is no Python: {exc}") from exc
    found: dict[str, JsonTree] = {}
    others: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = _python_value(node.value)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            others.append(ast.unparse(node))
    digest = hashlib.blake2b("\n".join(others).encode(), digest_size=8).hexdigest()
    return found | ({"code": f"digest {digest}"} if others else {})


def _python_value(node: ast.expr) -> JsonTree:
    """Return a literal, ``dict(…)`` of such as a mapping, and everything else as text."""
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        value: JsonTree = ast.literal_eval(node)
        return value
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "dict" and not node.args:
        return {each.arg or "**": _python_value(each.value) for each in node.keywords}
    return ast.unparse(node)


def _files_that_were_read(arguments: Mapping[str, JsonTree]) -> set[str]:
    """Return the arguments that name a file whose contents are arguments, too."""
    return {name[: end.start()] for name in arguments for end in re.finditer(":", name)}


def has_no_influence(name: str) -> bool:
    """Return whether an argument only says where results go, or how a run is called."""
    place, is_variable, variable = name.rpartition(":")[2].partition("env.")
    if is_variable and not place:
        return variable != "PATH" and not may_matter(variable)  # it says which program is meant
    return _WITHOUT_INFLUENCE.fullmatch(normal_name(name)) is not None


def _read_yaml(path: Path, text: bytes) -> JsonTree:
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        mark = getattr(exc, "problem_mark", None)
        problem = str(getattr(exc, "problem", None) or exc).splitlines()[0]
        if mark is None:
            raise ConfigFileError(path, problem) from exc
        raise ConfigFileError(path, problem, line=mark.line + 1, column=mark.column + 1) from exc


def _flatten(prefix: str, tree: object, depth: int) -> Iterator[tuple[str, JsonTree]]:
    begin = f"{prefix}." if prefix else ""
    if depth > 50:
        yield prefix, "nested too deeply"
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [one.name for one in dataclasses.fields(tree) if hasattr(tree, one.name)]
        yield from _flatten(prefix, {name: getattr(tree, name) for name in names}, depth + 1)
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _flatten(f"{begin}{key}", value, depth + 1)
    elif isinstance(tree, (list, tuple)) and any(
        isinstance(item, (Mapping, list, tuple)) for item in tree
    ):
        for number, value in enumerate(tree):
            yield from _flatten(f"{begin}{number}", value, depth + 1)
    elif prefix:
        yield prefix, _json_value(tree)
        if type(tree).__repr__ is object.__repr__:  # its text would be its class alone
            for name, text in described_settings(tree, _array_class):
                yield f"{begin}{name}", text


def _array_class(value: object) -> str | None:
    return type(value).__name__ if hasattr(type(value), "shape") else None


def _json_value(value: object) -> JsonTree:
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Enum):
        return _json_value(value.value)
    if hasattr(type(value), "shape"):  # a tensor: its text would make the program wait for it
        return type(value).__name__
    # Only the type: a repr may hold an address, which differs in every run.
    text = str(value)
    return text if " at 0x" not in text and len(text) <= 500 else type(value).__name__


def _plain(value: JsonTree) -> Any:
    """Return a value in the form that is compared: numbers, truth values and None as such."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if text in ("true", "false", "none", "null"):
        return {"true": True, "false": False}.get(text)
    try:
        number = float(text)
    except ValueError:
        return value.strip()
    return value.strip() if math.isnan(number) else number


def _text(value: JsonTree) -> str:
    if isinstance(value, dict) and value.get("description") == _DUPLICATE:
        return " | ".join(map(_text, value.get("values", ())))
    return str(value)


def _pair_names(bench: Sequence[str], cmp: Sequence[str]) -> list[_Pair]:
    left, waiting = dict.fromkeys(bench), {normal_name(name): name for name in cmp}
    pairs: list[_Pair] = []
    for how, find in (
        (_Pairing.NAME, _find_equal),
        (_Pairing.ALIAS, _find_alias),
        (_Pairing.SIMILARITY, _find_similar),
    ):
        if how is _Pairing.SIMILARITY and len(left) * len(waiting) > _MAX_COMPARED_BY_SIMILARITY**2:
            break
        for name in list(left):
            partner = find(normal_name(name), waiting)
            if partner is not None:
                pairs.append(_Pair(name, waiting.pop(partner), how))
                del left[name]
    pairs += [_Pair(name, None, _Pairing.ONLY_BENCH) for name in left]
    pairs += [_Pair(None, name, _Pairing.ONLY_CMP) for name in waiting.values()]
    return pairs


def normal_name(name: str) -> str:
    """Return the name of an argument without regard to case, dashes and blanks.

    Options of one letter keep their case: ``-n`` and ``-N`` are two.
    """
    text = re.sub(r"[-\s]", "_", name)
    return text[:-1].lower() + text[-1:] if _LETTER.fullmatch(text) else text.lower()


def _find_equal(name: str, waiting: Mapping[str, str]) -> str | None:
    return name if name in waiting else None


def _find_alias(name: str, waiting: Mapping[str, str]) -> str | None:
    last = _last(name)
    group = next((names for names in _ALIASES if last in names), frozenset({last}))
    # Of two trees (encoder.dropout, decoder.dropout) one name is two things.
    found = [
        other
        for other in waiting
        if _last(other) in group and (not _tree(name) or _tree(other) in ("", _tree(name)))
    ]
    # Two candidates would make it a guess.
    return found[0] if len(found) == 1 else None


def _last(name: str) -> str:
    """Return the name without the script or the tree that it belongs to."""
    return re.split(r"[.:]", name)[-1]


def _tree(name: str) -> str:
    """Return the tree that a name belongs to, empty if it is in none."""
    return name.rpartition(":")[2].rpartition(".")[0]


def _find_similar(name: str, waiting: Mapping[str, str]) -> str | None:
    best, best_ratio = None, _SIMILAR
    for other in waiting:
        matcher = SequenceMatcher(None, name, other, autojunk=False)
        if matcher.real_quick_ratio() > best_ratio and (ratio := matcher.ratio()) > best_ratio:
            best, best_ratio = other, ratio
    return best
