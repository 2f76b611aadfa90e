# SPDX-License-Identifier: Apache-2.0
"""Words of a shell script: what expansions, quotes and variables make of a piece of syntax."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from msprobe.run_config.command_options import BLANK
from msprobe.run_config.secrets import hide_secrets
from msprobe.run_config.shell_numbers import number_of, set_number
from msprobe.run_config.shell_variables import ALL, MARK, Variables, Word, shortened, shown

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_TEXT: Final = 1 << 15
MAX_WORDS: Final = 4096
_CONTINUED: Final = "\\ \t\n"
_ALTERNATIVES: Final = (":+", "+")
_DEFAULTS: Final = (":-", "-", ":=", "=")
_INTEGER: Final = re.compile(r"-?\d{1,9}")
_CASES: Final[Mapping[str, Callable[[str], str]]] = {"^^": str.upper, ",,": str.lower}
_SINGLE: Final = re.compile(r"""'([^'"$`\\!]*)'""")
_QUOTED: Final = re.compile(r"""(['"])([\w./:=+%@-]+)\1""")
_BRACED_VARIABLE: Final = re.compile(r"\$\{(\w+)\}(?!\w)")
_QUOTED_VARIABLE: Final = re.compile(r'"(\$\{?\w+\}?)"')
_GLOB: Final = re.compile(r"[*?~<]|\[[^\[ ]|&&|\|\|")
_BRACES: Final = re.compile(r"\{([^{}\s]*(?:,|\.\.)[^{}\s]*)\}")
_NESTED: Final = re.compile(r"\{[^}]*\{")
_PLAIN: Final = frozenset(
    ("word", "number", "concatenation", "brace_expression", "{", "}", "..", "command_name")
)
_NAMES: Final = ("variable_name", "special_variable_name")
_COMPARE: Final = ("-z", "-n", "-eq", "-ne", "-lt", "-le", "-gt", "-ge")
# What they print, and whether they succeed, depends on their words alone.
_PURE: Final = frozenset(
    ("basename", "dirname", "seq", "printf", "echo", "expr", "tr", "bc", "true", ":", "let", "test")
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
# A format of ``printf`` with words alone.
_FORM: Final = re.compile(r"(?:[^%{}]|%s)*")
_ESCAPE_IN_QUOTES: Final = re.compile(r'\\(["$`\\\n])')


class _Piece(NamedTuple):
    """A part of a word; one that splits is cut into words at its blanks."""

    text: str
    doubts: tuple[str, ...] = ()
    splits: bool = False
    ends_word: bool = False


@cache
def shell_parser() -> Parser:
    """Return the parser of bash's grammar."""
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def text_of(node: Node) -> str:
    """Return the source of a node."""
    return (node.text or b"").decode(errors="replace")


def words_of(node: Node, variables: Variables) -> list[Word]:
    """Return the words that a node of a command makes, split as the shell splits them."""
    if _BRACES.search(text_of(node)) and all(one.type in _PLAIN for one in walk(node)):
        return [Word(text) for text in _from_braces(text_of(node))]
    words: list[Word] = []
    current: Word | None = None
    for piece in _pieces(node, variables, quoted=False):
        if piece.ends_word:
            words += [] if current is None else [current]
            current = None
        elif not piece.splits:
            current = _joined(current, piece.text, piece.doubts)
        else:
            for number, part in enumerate(re.split(variables.separators, piece.text)):
                if number and current is not None:
                    words.append(current)
                    current = None
                is_meant = MARK in part or MARK not in piece.text
                if part:
                    current = _joined(current, part, piece.doubts if is_meant else ())
    words += [] if current is None else [current]
    if len(words) > MAX_WORDS:
        rest = shortened(" ".join(word.text for word in words[MAX_WORDS:]))
        words[MAX_WORDS:] = [Word(rest, words[-1].doubts)]
    return words


def _from_braces(text: str) -> list[str]:
    """Return what ``a{1..3}`` or ``{a,b}`` makes; the text itself if it is too much."""
    found = _BRACES.search(text)
    if found is None or _NESTED.search(text):
        return [text]
    inner: Sequence[str] = found[1].split(",")
    if found[1].count("..") and "," not in found[1]:
        ends = found[1].split("..")
        are_numbers = all(map(_INTEGER.fullmatch, ends))
        if len(ends) not in (2, 3) or not (
            are_numbers or (all(len(one) == 1 for one in ends[:2]) and len(ends) == 2)
        ):
            return [text]
        first, last = (int(one) if are_numbers else ord(one) for one in ends[:2])
        sign, step = (1 if last >= first else -1), abs(int(ends[2])) if ends[2:] else 1
        if abs(last - first) >= MAX_WORDS:
            return [text]
        places = range(first, last + sign, (step or 1) * sign)
        inner = [str(one) if are_numbers else chr(one) for one in places]
    ends = _from_braces(text[found.end() :])
    return [text[: found.start()] + one + end for one in inner for end in ends][: MAX_WORDS + 1]


def value_of(node: Node | None, variables: Variables) -> Word:
    """Return what a variable holds that a node is assigned to: one word, nothing is split."""
    if node is None:
        return Word("")
    pieces = list(_pieces(node, variables, quoted=True))
    text = "".join(" " if piece.ends_word else piece.text for piece in pieces)
    doubts = tuple(dict.fromkeys(doubt for piece in pieces for doubt in piece.doubts))
    if len(text) > MAX_TEXT:
        return Word(shortened(text), (_doubt(node, "is too long"),))
    return Word(text, doubts)


def _joined(word: Word | None, text: str, doubts: tuple[str, ...]) -> Word:
    if word is None:
        return Word(text, doubts)
    return Word(word.text + text, tuple(dict.fromkeys(word.doubts + doubts)))


def _missing(name: str) -> str:
    is_argument = name.isdigit() or name in ALL
    return "depends on the arguments of the script" if is_argument else "is not set in the script"


def _doubt(node: Node, reason: str) -> str:
    source = " ".join(text_of(node).split())
    return f"{source[:40]} {reason} (line {node.start_point[0] + 1})"


def _pieces(node: Node, variables: Variables, *, quoted: bool) -> Iterator[_Piece]:
    match node.type:
        case "string" | "translated_string":
            yield _Piece("")  # an empty word is a word, too
            yield from _in_quotes(node, variables)
        case "raw_string":
            yield _Piece(text_of(node)[1:-1])
        case "ansi_c_string":
            yield _Piece(_without_escapes(text_of(node)[2:-1]))
        case "heredoc_body":
            yield from _in_quotes(node, variables)
        case "concatenation" | "command_name":
            for child in node.children:
                yield from _pieces(child, variables, quoted=quoted)
        case "simple_expansion":
            name = text_of(node).lstrip(_CONTINUED).removeprefix("$")
            yield from _variable(node, name, variables, quoted=quoted)
        case "expansion":
            yield from _expansion(node, variables, quoted=quoted)
        case "arithmetic_expansion":
            yield _arithmetic(node, variables)
        case "command_substitution" | "process_substitution":
            yield from _made(node, variables, quoted=quoted)
        case _:
            yield _Piece(_ESCAPE.sub(_unescaped, text_of(node)))


def opaque(node: Node, variables: Variables) -> Word:
    """Return an expression that is compared as text: its source, and the values in it.

    Equal texts with equal values come to the same, whatever a shell makes of them; a part that
    the shell takes from elsewhere is a doubt.
    """
    own, values, doubts = assigned_in(node), dict[str, str](), list[str]()
    for part in walk(node):
        name = text_of(part)
        if part.type in _NAMES or (part.type == "word" and name in variables.values):
            known = variables.words(name)
            if known is not None:
                given = shown(shortened(" ".join(word.text for word in known)))
                values[name] = hide_secrets(name, given)
                doubts += [doubt for word in known for doubt in word.doubts]
            elif part.type in _NAMES and name not in own:
                doubts.append(_doubt(part, _missing(name)))
        elif (part.type == "command_name" and name not in _PURE) or (
            part.type in ("file_redirect", "test_operator") and name not in _COMPARE
        ):
            doubts.append(_doubt(part, "is only known when it runs"))
            if name in variables.functions:
                values[f"{name}()"] = shortened(normal_text(variables.functions[name]))
    known_values = ", ".join(f"{name}={value}" for name, value in values.items())
    source = plain_source(node)
    source = re.sub(r"\w+", lambda one: variables.renamed.get(one[0], one[0]), source)
    text = shortened(source) + (f" with {known_values}" if known_values else "")
    marked = re.sub(r"\s", BLANK, text) + MARK
    return Word(marked, tuple(dict.fromkeys(doubts)))


def plain_source(node: Node) -> str:
    """Return the source of a statement, alike for spellings that a shell takes for the same."""
    source = normal_text(node)
    source = _QUOTED_VARIABLE.sub(r"\1", source)
    if node.type == "command" and source.startswith("test "):
        source = f"[ {source[5:]} ]"
    if node.type == "test_command":
        source = source.replace(" == ", " = ")
        if _GLOB.search(source) is None:
            source = source.replace("[[", "[").replace("]]", "]")
    return _BRACED_VARIABLE.sub(r"$\1", source)


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all inside it, in order."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += reversed(one.children)


def assigned_in(node: Node) -> dict[str, Node]:
    """Return the assignments inside a node by the variable; of several the last."""
    found: dict[str, Node] = {}
    for part in walk(node):
        signs = {text_of(child) for child in part.children if not child.is_named}
        is_assignment = part.type == "variable_assignment" or (
            part.type.endswith("_expression") and not signs.isdisjoint(_ASSIGN)
        )
        if is_assignment and part.named_children:
            found[text_of(part.named_children[0])] = part
    return found


def read_in(node: Node) -> Iterator[str]:
    """Yield the variables that ``read`` sets inside a node."""
    for part in walk(node):
        words = [text_of(one) for one in part.children] if part.type == "command" else []
        if words[:1] == ["read"]:
            yield from (word for word in words[1:] if word.isidentifier())


def normal_text(node: Node) -> str:
    """Return the source of a node without comments, needless quotes, backticks, further blanks."""
    text, end = "", node.start_byte
    for part in walk(node):
        if part.children or part.type == "comment":
            continue
        leaf = text_of(part)
        if leaf == "`" and part.parent is not None:
            leaf = "$(" if part == part.parent.children[0] else ")"
        text += (" " if part.start_byte > end else "") + leaf
        end = part.end_byte
    return _QUOTED.sub(r"\2", _SINGLE.sub(r'"\1"', " ".join(text.split())))


def _made(node: Node, variables: Variables, *, quoted: bool) -> Iterator[_Piece]:
    """Yield what ``$(…)`` makes of a command whose result its words tell."""
    inner = node.named_children
    found = None
    if node.type == "command_substitution" and len(inner) == 1:
        if inner[0].type == "file_redirect":  # $(< FILE)
            targets = inner[0].children_by_field_name("destination")
            found = variables.content(value_of(targets[0], variables)) if targets else None
        elif inner[0].type == "command" and inner[0].child_by_field_name("redirect") is None:
            found = printed_by(inner[0], variables)
    if found is None:  # one word at least: what splits it is not known
        yield _Piece(*opaque(node, variables))
    else:
        yield _Piece(found.text, found.doubts, splits=not quoted)


def printed_by(command: Node, variables: Variables) -> Word | None:
    """Return the output of ``cat FILE``, ``echo`` and ``seq``; None of other commands."""
    if any(one.type == "variable_assignment" for one in command.named_children):
        return None
    parts = [part for one in command.named_children for part in words_of(one, variables)]
    match [word.text for word in parts]:
        case "cat", _:
            return variables.content(parts[1])
        case ["echo", "-n" | "-e", *rest] | ["echo", *rest]:
            doubts = tuple(dict.fromkeys(doubt for word in parts for doubt in word.doubts))
            return Word(" ".join(rest), doubts)
        case ["printf", "--", form, *rest] | ["printf", form, *rest] if _FORM.fullmatch(form):
            doubts = tuple(dict.fromkeys(doubt for word in parts for doubt in word.doubts))
            return Word(_formatted(form, rest), doubts)
        case ["seq", *ends] if 0 < len(ends) < 4:
            first, step = ends[0] if ends[1:] else "1", ends[1] if ends[2:] else "1"
            numbers = _from_braces(f"{{{first}..{ends[-1]}..{step}}}")
            is_one = len(numbers) == 1 and first != ends[-1]
            return None if is_one else Word("\n".join(numbers))
    return None


def _formatted(form: str, words: Sequence[str]) -> str:
    """Return what ``printf`` makes of words; the format is used again as long as there are any."""
    form = _without_escapes(form)
    count = form.count("%s")
    if not count:
        return form
    rounds = range(0, max(len(words), 1), count)
    return "".join(
        form.replace("%s", "{}").format(*words[at : at + count], *[""] * count) for at in rounds
    )


def _arithmetic(node: Node, variables: Variables) -> _Piece:
    found = number_of(text_of(node)[3:-2], variables)
    if found is not None:
        return _Piece(str(found))
    piece = _Piece(*opaque(node, variables))
    set_opaquely(assigned_in(node), variables)
    return piece


def set_opaquely(assignments: Mapping[str, Node], variables: Variables) -> None:
    """Set variables to the texts of their assignments."""
    found = {name: opaque(one, variables) for name, one in assignments.items()}
    variables.values |= {name: (word,) for name, word in found.items()}


def set_by_name(words: Sequence[Word], node: Node, variables: Variables) -> None:
    """Follow ``let NAME=…`` and ``printf -v NAME …``."""
    texts = [word.text for word in words]
    names = texts[1:2] if texts[:1] == ["-v"] else [one.partition("=")[0] for one in texts]
    if texts[:1] == ["-v"] or text_of(node.children[0]) == "let":
        if texts[:1] != ["-v"] and all(set_number(one, variables) is not None for one in texts):
            return
        word = opaque(node, variables)
        variables.values |= dict.fromkeys((name.rstrip("+-*/%") for name in names), (word,))


_ASSIGN: Final = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "++", "--"))


def _in_quotes(node: Node, variables: Variables) -> Iterator[_Piece]:
    """Yield the contents of a quoted string; blanks between expansions have no nodes."""
    content, start = node.text or b"", node.start_byte
    is_string = node.type != "heredoc_body"
    inner = [child for child in node.children if child.type != '"']
    position = content.find(b'"') + 1 if is_string else 0
    for child in inner:
        yield from _literal(content[position : child.start_byte - start])
        if child.type in ("string_content", "heredoc_content"):
            yield from _literal(child.text or b"")
        else:
            # The grammar puts blanks and continued lines in front of ``$`` into an expansion.
            if child.type.endswith("expansion"):
                yield from _literal((child.text or b"").partition(b"$")[0])
            yield from _pieces(child, variables, quoted=True)
        position = child.end_byte - start
    rest = content[position:]
    yield from _literal(rest.removesuffix(b'"') if is_string else rest)


def _literal(content: bytes) -> Iterator[_Piece]:
    if content:
        yield _Piece(_ESCAPE_IN_QUOTES.sub(_unescaped, content.decode(errors="replace")))


def _unescaped(found: re.Match[str]) -> str:
    return "" if found[1] == "\n" else found[1]


def _without_escapes(text: str) -> str:
    known = {"n": "\n", "t": "\t"}
    return _ESCAPE.sub(lambda found: known.get(found[1], found[1]), text)


def _expansion(node: Node, variables: Variables, *, quoted: bool) -> Iterator[_Piece]:
    """Yield what ``${…}`` makes: a variable, an array, a default."""
    named = [child for child in node.named_children if child.type != "comment"]
    operators = [text_of(child).lstrip(_CONTINUED) for child in node.children if not child.is_named]
    sign = next((each for each in operators if each not in ("${", "}")), "")
    if not named or named[0].type not in ("variable_name", "subscript", "special_variable_name"):
        yield _Piece(*opaque(node, variables))
        return
    name, index = _name_and_index(named[0])
    known = variables.words(name)
    if not sign and index is not None and index not in ALL:
        index = value_of(named[0].child_by_field_name("index"), variables).text
        if known is None or index.isdigit():
            one = None if known is None else known[int(index) : int(index) + 1]
            yield from _plain(node, one, quoted=quoted)
        else:
            yield _Piece(*opaque(node, variables))
    elif not sign:
        yield from _variable(node, name, variables, quoted=quoted, index=index)
    elif sign in (":", "!") and known and (name in ALL or index in ALL):
        yield from _slice(node, known, named[1:], variables, quoted=quoted)
    elif sign in _ALTERNATIVES and not (known and known[0].doubts):
        if known is None and name not in variables.own:  # the shell may have it from elsewhere
            variables.defaults[name] = None
            text = value_of(named[1] if named[1:] else None, variables).text
            text = f"{text} or nothing".replace(" ", BLANK) + MARK
            yield _Piece(text, (_doubt(node, _missing(name)),))
        elif known and (known[0].text or sign == "+"):
            for each in named[1:]:
                yield from _pieces(each, variables, quoted=quoted)
    elif sign in _DEFAULTS:
        yield from _with_default(node, name, named[1:], sign, variables, quoted=quoted)
    elif sign in _CASES and known and known[0].is_known and not named[1:]:
        yield _Piece(_CASES[sign](known[0].text), splits=not quoted)
    else:  # ${name#pattern}, ${name/pattern/text}, ${name:start} …
        yield _Piece(*opaque(node, variables))


def _slice(
    node: Node,
    words: tuple[Word, ...],
    ends: Sequence[Node],
    variables: Variables,
    *,
    quoted: bool,
) -> Iterator[_Piece]:
    """Yield what ``${@:2}``, ``${A[@]:1:2}`` or ``${!A[@]}`` makes; arguments count from one."""
    if text_of(node).startswith("${!") and not words[0].text.startswith("["):
        places = [Word(str(place)) for place in range(len(words))]
        yield from _each(places, quoted=quoted, is_one=False)
        return
    numbers = [number_of(text_of(one), variables) for one in ends]
    if None in numbers or not numbers or min(filter(None, numbers), default=0) < 0:
        yield _Piece(*opaque(node, variables))
        return
    first, *count = (one or 0 for one in numbers)
    is_arguments = text_of(node.named_children[0]) in ALL
    first = max(first - 1, 0) if is_arguments else first
    last = first + count[0] if count else None
    yield from _each(words[first:last], quoted=quoted, is_one=quoted and "*" in text_of(node))


def _with_default(
    node: Node,
    name: str,
    default: Sequence[Node],
    operator: str,
    variables: Variables,
    *,
    quoted: bool,
) -> Iterator[_Piece]:
    known = variables.words(name)
    if known and known[0].text:
        if known[0].is_known or not operator.startswith(":"):
            yield from _plain(node, known, quoted=quoted)
        else:  # it may be empty
            yield _Piece(*opaque(node, variables))
        return
    if known is None:
        variables.defaults[name] = None
    doubts: tuple[str, ...] = ()
    if name.isdigit() and variables.arguments is None:
        doubts = (_doubt(node, "depends on the arguments of the script"),)
    pieces = [piece for one in default for piece in _pieces(one, variables, quoted=quoted)]
    if operator in (":=", "="):
        variables.values[name] = (Word("".join(piece.text for piece in pieces)),)
    for piece in pieces or [_Piece("", splits=not quoted)]:
        yield piece._replace(doubts=piece.doubts + doubts, splits=not quoted)


def _name_and_index(node: Node) -> tuple[str, str | None]:
    if node.type != "subscript":
        return text_of(node), None
    name, index = node.child_by_field_name("name"), node.child_by_field_name("index")
    return text_of(name) if name else "", text_of(index) if index else ""


def _variable(
    node: Node, name: str, variables: Variables, *, quoted: bool, index: str | None = None
) -> Iterator[_Piece]:
    known = variables.words(name)
    if known is None and name in variables.own:  # the script sets it elsewhere: not on this way
        yield _Piece("", splits=not quoted)
    elif known is None:
        yield _Piece(f"${name}", (_doubt(node, _missing(name)),))
    elif index is not None or name in ALL:
        yield from _each(known, quoted=quoted, is_one=quoted and "*" in (index, name))
    else:
        yield from _plain(node, known[:1], quoted=quoted)


def _plain(node: Node, words: Sequence[Word] | None, *, quoted: bool) -> Iterator[_Piece]:
    if words is None:
        yield _Piece(text_of(node).lstrip(_CONTINUED), (_doubt(node, _missing("")),))
        return
    for word in words:
        yield _Piece(word.text, word.doubts, splits=not quoted)


def _each(words: Sequence[Word], *, quoted: bool, is_one: bool) -> Iterator[_Piece]:
    """Yield the words of an array, each a word of its own, or all in one with blanks between."""
    for number, word in enumerate(words):
        if number:
            yield _Piece(" ") if is_one else _Piece("", ends_word=True)
        yield _Piece(word.text, word.doubts, splits=not quoted)


def as_mapping(words: Sequence[Word]) -> Mapping[str, tuple[str, ...]]:
    """Return the doubts of the words that have some, by their texts."""
    return {word.text: word.doubts for word in words if word.doubts}
