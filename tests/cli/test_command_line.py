# SPDX-License-Identifier: Apache-2.0
"""The command line as a whole: one language in all commands, and help with mistakes."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import msprobe
from builders.networks import write_dump
from msprobe.cli import main
from msprobe.cli.commands import COMMANDS, Group
from msprobe.cli.options import positive_number
from msprobe.cli.parser import make_parser, parse_command

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")

PAIRS = [
    *("compare", "compare-ckpt", "triage", "bisect", "config-check", "grad-compare"),
    *("monitor compare", "api-precision-compare"),
]


def ended(*words):
    """Return the exit code, also of those that argparse ends with."""
    try:
        return main([*words])
    except SystemExit as end:
        return end.code


def test_the_version_is_printed(capsys):
    assert ended("--version") == 0
    assert capsys.readouterr().out == f"msprobe {msprobe.__version__}\n"


def test_the_help_lists_every_command_under_its_group(capsys):
    assert ended("--help") == 0
    out = capsys.readouterr().out
    places = [out.index(f"\n{group.title()}:") for group in Group if group is not Group.WATCH]
    assert places == sorted(places)
    for command in COMMANDS:
        assert re.search(rf"^  {command.name.split()[0]}( |$)", out, re.MULTILINE), command.name


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_a_help_and_hyphens(capsys, command):
    assert ended(*command.name.split(), "--help") == 0
    assert f"msprobe {command.name}" in capsys.readouterr().out
    actions = make_parser(command).options().values()
    shown = [flag for action in actions for flag in action.option_strings]
    assert not [flag for flag in shown if flag.startswith("--") and "_" in flag]
    assert "_" not in command.name


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_help_has_examples_that_are_valid_and_exit_codes(command):
    epilog = make_parser(command).epilog
    assert "exit code" in epilog
    examples = re.findall(r"^  (.*\bmsprobe .*)$", epilog, re.MULTILINE)
    assert examples
    for line in examples:
        words = shlex.split(line.split("  ")[0].rpartition("msprobe ")[2])
        words = words[: words.index(">")] if ">" in words else words
        assert " ".join(words).startswith(command.name)
        parse_command(command, words[len(command.name.split()) :])


def test_help_in_front_of_a_command_is_its_help(capsys):
    assert ended("help", "monitor", "show") == 0
    assert "msprobe monitor show" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_underscores_are_accepted_in_every_command(capsys, command):
    assert ended(command.name.replace("-", "_"), "--help") == 0
    accepted = make_parser(command).options()
    for flag in [flag for flag in accepted if flag.startswith("--")]:
        assert accepted[f"--{flag[2:].replace('-', '_')}"] is accepted[flag]


def test_one_option_is_spelt_the_same_in_all_commands():
    meanings = {
        "-o": "--output",
        "-q": "--quiet",
        "-v": "--verbose",
        "-i": "--input-path",
        "-n": "--workers",
    }
    documented = {("merge-result", "-i"), ("op-generate", "-i")}  # another thing there
    forms = {}
    for command in COMMANDS:
        options = make_parser(command).options()
        for short, long in meanings.items():
            if short in options and (command.name, short) not in documented:
                assert options[short] is options[long], command.name
        assert ("--all" in options) == ("--limit" in options), command.name
        for flag in ("--list", "--scope", "--limit", "--output", "--timeout", "--seed"):
            if flag in options:
                forms.setdefault(flag, []).append((command.name, options[flag]))
    for flag, found in forms.items():
        assert len({(action.nargs, action.type) for _, action in found} - _LOOSE) == 1, flag


# `compare -o` without a folder is documented; of seconds, some commands take whole ones only.
_LOOSE = {("?", Path), (None, positive_number)}


@pytest.mark.parametrize("command", [*PAIRS, "graph", "monitor view"])
def test_the_target_comes_first(capsys, command):
    assert ended(*command.split(), "--help") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"TARGET\]? \[?REFERENCE", out) if command in PAIRS else "[REFERENCE" in out


def test_documented_spellings_do_the_same(capsys, tmp_path):
    target, reference = write_dump(tmp_path / "new", scale=1.5), write_dump(tmp_path / "old")
    wanted = ended("compare", str(target), str(reference), "--quiet"), capsys.readouterr().out
    for words in (
        ["-f", "pytorch", "compare", "-tp", target, "-gp", reference, "--quiet"],
        ["compare", "-f", "pytorch", "--target_path", target, "--golden_path", reference, "-q"],
        ["compare", f"--target-path={target}", f"--golden_path={reference}", "--quiet"],
    ):
        assert (ended(*map(str, words)), capsys.readouterr().out) == wanted


@pytest.mark.skipif(sys.platform != "linux", reason="needs a pipe of known size")
def test_an_interrupted_command_ends_with_130():
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)  # full long before the schema is printed
    command = [sys.executable, "-m", "msprobe", "config-schema"]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as started:
        os.close(writer)
        with os.fdopen(reader, "rb", buffering=0) as output:
            output.read(1)
            started.send_signal(signal.SIGINT)
            output.read()
        assert started.stderr.read() == b"msprobe: error: interrupted\n"
        assert started.wait(20) == 130


# Interrupts while the shell's imports run, and at a place whose cleaning up fails then.
INTERRUPTS = {
    "import": """
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "msprobe.cli.commands":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
""",
    "options": """
def interrupt(frame, event, argument):
    if frame.f_code.co_name == "format_usage":
        sys.settrace(None)
        raise KeyboardInterrupt

sys.settrace(interrupt)
""",
}


@pytest.mark.parametrize("place", INTERRUPTS)
def test_an_interrupt_before_the_command_begins_ends_with_130(place):
    program = f"import sys\n{INTERRUPTS[place]}\nfrom msprobe.cli import main\nsys.exit(main())"
    command = [sys.executable, "-c", program, "show", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "msprobe: error: interrupted\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_and_options(capsys, tmp_path):
    assert ended("--completion", "bash") == 0
    script = tmp_path / "completion.sh"
    script.write_text(capsys.readouterr().out)
    asked = """
        source "$1"
        COMP_WORDS=(msprobe compare-c); COMP_CWORD=1; _shtab_msprobe; echo "${COMPREPLY[@]}"
        COMP_WORDS=(msprobe compare --tar); COMP_CWORD=2; _shtab_msprobe; echo "${COMPREPLY[@]}"
        COMP_WORDS=(msprobe monitor show --str); COMP_CWORD=3; _shtab_msprobe
        echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", asked, "bash", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["compare-ckpt", "--target-path", "--stream"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes_commands_and_options(capsys, tmp_path):
    assert ended("--completion", "fish") == 0
    script = tmp_path / "completion.fish"
    script.write_text(capsys.readouterr().out)
    asked = """
        source $argv[1]
        for typed in 'compare-c' 'compare --tar' 'monitor show --str'
            complete -C "msprobe $typed"
        end
    """
    words = ["fish", "--no-config", "-c", asked, script]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = [line.split("\t")[0] for line in done.stdout.splitlines() if "\t" in line]
    assert found == ["compare-ckpt", "--target-path", "--stream"]


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh"])
def test_other_shells_have_a_script(capsys, shell):
    assert ended("--completion", shell) == 0
    assert "compare-ckpt" in capsys.readouterr().out
