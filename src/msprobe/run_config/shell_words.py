# SPDX-License-Identifier: Apache-2.0
"""Words of a shell script: what expansions, quotes and variables make of a piece of syntax."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_TEXT: Final = 1 << 15
_MAX_WORDS: Final = 4096
_MOST: Final = 1 << 63
_ALL: Final = ("@", "*")
_DEFAULTS: Final = (":-", "-", ":=", "=")
_INTEGER: Final = re.compile(r"-?\d{1,9}")
_FORMAT: Final = re.compile(r"%[-+0 ]?\d{0,3}(?:\.\d{1,2})?([sdifeEgG%])")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPE_IN_QUOTES: Final = re.compile(r'\\(["$`\\\n])')


class Word(NamedTuple):
    """A word of a command.

    Attributes:
        text: the word; parts that cannot be known are as the script has them.
        doubts: why a part of it cannot be known.
    """

    text: str
    doubts: tuple[str, ...] = ()


class _Piece(NamedTuple):
    """A part of a word; one that splits is cut into words at its blanks."""

    text: str
    doubts: tuple[str, ...] = ()
    splits: bool = False
    ends_word: bool = False


@dataclass(slots=True)
class Variables:
    """Variables of a shell, and the arguments of the script or function that runs.

    Attributes:
        values: words by name: one of a plain variable, any number of an array.
        arguments: the words behind ``$1``, ``$2`` …; None where they are not known.
        read: returns the text of a file; None if it is not there.
    """

    values: dict[str, tuple[Word, ...]] = field(default_factory=dict)
    arguments: tuple[Word, ...] | None = None
    read: Callable[[str], str | None] = lambda _: None

    def copy(self) -> Variables:
        """Return the same, to be changed apart."""
        return Variables(dict(self.values), self.arguments, self.read)

    def content(self, file: Word) -> Word | None:
        """Return the text of a file without line breaks at its end; None if it is not there."""
        text = None if file.doubts else self.read(file.text)
        return None if text is None else Word(text.rstrip("\n"))


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
    words: list[Word] = []
    current: Word | None = None
    for piece in _pieces(node, variables, quoted=False):
        if piece.ends_word:
            words += [] if current is None else [current]
            current = None
        elif not piece.splits:
            current = _joined(current, piece.text, piece.doubts)
        else:
            for number, part in enumerate(re.split(r"\s+", piece.text)):
                if number and current is not None:
                    words.append(current)
                    current = None
                if part:
                    current = _joined(current, part, piece.doubts)
    words += [] if current is None else [current]
    return words[:_MAX_WORDS]


def value_of(node: Node | None, variables: Variables) -> Word:
    """Return what a variable holds that a node is assigned to: one word, nothing is split."""
    if node is None:
        return Word("")
    pieces = list(_pieces(node, variables, quoted=True))
    text = "".join(" " if piece.ends_word else piece.text for piece in pieces)
    doubts = tuple(dict.fromkeys(doubt for piece in pieces for doubt in piece.doubts))
    if len(text) > MAX_TEXT:
        return Word(text_of(node), (_doubt(node, "is too long"),))
    return Word(text, doubts)


def _joined(word: Word | None, text: str, doubts: tuple[str, ...]) -> Word:
    if word is None:
        return Word(text, doubts)
    return Word(word.text + text, tuple(dict.fromkeys(word.doubts + doubts)))


def _doubt(node: Node, reason: str) -> str:
    shown = " ".join(text_of(node).split())
    return f"{shown[:40]} {reason} (line {node.start_point[0] + 1})"


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
            name = text_of(node).removeprefix("$")
            yield from _variable(node, name, variables, quoted=quoted)
        case "expansion":
            yield from _expansion(node, variables, quoted=quoted)
        case "arithmetic_expansion":
            yield _arithmetic(node, variables)
        case "command_substitution" | "process_substitution" | "brace_expression":
            yield from _made(node, variables, quoted=quoted)
        case _:
            yield _Piece(_ESCAPE.sub(_unescaped, text_of(node)))


def _made(node: Node, variables: Variables, *, quoted: bool) -> Iterator[_Piece]:
    """Yield what ``$(…)`` and ``{1..3}`` make."""
    if node.type == "brace_expression":
        first, last = (int(text_of(one)) for one in node.named_children)
        if quoted or abs(last - first) >= _MAX_WORDS:  # as what a variable is set to, or too many
            yield _Piece(text_of(node))
            return
        step = 1 if last >= first else -1
        numbers = range(first, last + step, step)
        yield from _each([Word(str(one)) for one in numbers], quoted=True)
        return
    found = _printed(node, variables) if node.type == "command_substitution" else None
    if found is None:  # one word at least: what splits it is not known
        yield _unknown(node)
    else:
        yield _Piece(found.text, found.doubts, splits=not quoted)


def _printed(node: Node, variables: Variables) -> Word | None:
    """Return what ``$(…)`` makes of a command whose result its words tell; else None."""
    inner = node.named_children
    if len(inner) != 1:
        return None
    if inner[0].type == "file_redirect":  # $(< FILE)
        targets = inner[0].children_by_field_name("destination")
        return variables.content(value_of(targets[0], variables)) if targets else None
    if inner[0].type != "command" or inner[0].child_by_field_name("redirect") is not None:
        return None
    return printed_by(inner[0], variables)


def printed_by(command: Node, variables: Variables) -> Word | None:
    """Return what a command prints, if its words and the files that they name tell."""
    if any(one.type == "variable_assignment" for one in command.named_children):
        return None
    parts = [part for one in command.named_children for part in words_of(one, variables)]
    if not parts:
        return None
    name, given = parts[0].text, parts[1:]
    doubts = tuple(dict.fromkeys(doubt for word in given for doubt in word.doubts))
    texts = [word.text for word in given]
    match name, texts:
        case "cat", [_]:
            return variables.content(given[0])
        case "echo", ["-n" | "-e", *rest] | rest:
            return Word(" ".join(rest), doubts)
        case "printf", [shape, *rest]:
            text = formatted(shape, rest)
            return None if text is None else Word(text.rstrip("\n"), doubts)
        case "basename", [path, *ending]:
            last = path.rstrip("/").rpartition("/")[2]
            return Word(last.removesuffix(ending[0]) if ending else last, doubts)
        case "dirname", [path]:
            return Word(path.rstrip("/").rpartition("/")[0] or ".", doubts)
        case "seq", ends if 0 < len(ends) < 4 and all(map(_INTEGER.fullmatch, ends)):
            start, step = (int(ends[0]) if len(ends) > 1 else 1), (int(ends[1]) if ends[2:] else 1)
            numbers = range(start, int(ends[-1]) + (1 if step > 0 else -1), step or 1)
            if len(numbers) > _MAX_WORDS:
                return None
            return Word("\n".join(map(str, numbers)), doubts)
    return None


def formatted(shape: str, values: Sequence[str]) -> str | None:
    """Return what ``printf`` makes of a format; None where only the shell knows."""
    waiting = list(values)

    def one(found: re.Match[str]) -> str:
        value = waiting.pop(0) if waiting else ""
        match found[1]:
            case "s":
                return found[0] % value
            case "d" | "i":
                return found[0] % int(value or "0", 0)
            case kind if kind in "feEgG":
                return found[0] % float(value or "0")
        return "%"

    try:
        text = _FORMAT.sub(one, _without_escapes(shape))
    except ValueError:
        return None
    return None if waiting else text  # the format is used again for further values


def _arithmetic(node: Node, variables: Variables) -> _Piece:
    """Return the value of ``$((…))`` of whole numbers, if all its variables are known."""
    found = number_of(node, variables)
    return _unknown(node) if found is None else _Piece(str(found))


def _unknown(node: Node) -> _Piece:
    return _Piece(text_of(node), (_doubt(node, "is only known when it runs"),))


def number_of(node: Node, variables: Variables) -> int | None:
    """Return the value of an arithmetic expression, and set the variables that it assigns.

    Returns:
        None where a part of it is not known; then the variables that it assigns are not, either.
    """
    try:
        return _number(node, variables)
    except (KeyError, ValueError, ZeroDivisionError, OverflowError, IndexError):
        waiting = [node]
        while waiting:
            part = waiting.pop()
            waiting += part.named_children
            if part.type in ("postfix_expression", "variable_assignment") or (
                part.type in ("binary_expression", "unary_expression") and _assigns(part)
            ):
                name = text_of(part.named_children[0])
                variables.values[name] = (Word(f"${name}", _unknown(part).doubts),)
        return None


def _assigns(node: Node) -> bool:
    signs = [text_of(child) for child in node.children if not child.is_named]
    return any(sign in _ASSIGN for sign in signs)


def _number(node: Node, variables: Variables) -> int:
    inner, text = [child for child in node.named_children if child.type != "comment"], text_of(node)
    match node.type:
        case "number" | "word" | "variable_name" if text.isidentifier():
            found = int(_known(_words_in(text, variables)), 0)
        case "number" | "word":
            found = int(text, 0)  # 010 is octal in a shell: it stays open
        case "simple_expansion" | "expansion":
            found = int(_known((value_of(node, variables),)), 0)
        case "parenthesized_expression" | "arithmetic_expansion" | "compound_statement":
            found = _only([_number(each, variables) for each in inner])
        case "variable_assignment":
            found = _number(inner[1], variables)
            variables.values[text_of(inner[0])] = (Word(str(found)),)
        case "postfix_expression" | "unary_expression":
            found = _of_one(node, inner[0], variables)
        case "ternary_expression":
            found = _number(inner[1 if _number(inner[0], variables) else 2], variables)
        case "binary_expression":
            sign = text_of(node.children[1])
            if sign in ("&&", "||"):  # what is behind may not be evaluated
                is_true = bool(_number(inner[0], variables))
                is_known = is_true is (sign == "||")
                found = int(is_true if is_known else bool(_number(inner[1], variables)))
            elif _assigns(node):
                right = _number(inner[1], variables)
                change = _OPERATIONS.get(sign.removesuffix("="))
                found = right if change is None else change(_number(inner[0], variables), right)
                variables.values[text_of(inner[0])] = (Word(str(found)),)
            else:
                left, right = (_number(each, variables) for each in inner)
                found = int(_OPERATIONS[sign](left, right))
        case _:
            raise ValueError(node.type)
    if abs(found) > _MOST:
        raise ValueError("beyond the numbers of a shell")
    return found


def _of_one(node: Node, inner: Node, variables: Variables) -> int:
    sign = next(text_of(child) for child in node.children if child != inner)
    if inner.type == "binary_expression":
        raise ValueError("the grammar lets a sign bind weaker than a shell does")
    before = _number(inner, variables)
    if sign in ("++", "--"):
        after = before + (1 if sign == "++" else -1)
        variables.values[text_of(inner)] = (Word(str(after)),)
        return before if node.type == "postfix_expression" else after
    return {"-": -before, "+": before, "!": int(not before)}[sign]


def _only(numbers: Sequence[int]) -> int:
    if len(numbers) != 1:
        raise ValueError("several expressions")
    return numbers[0]


def _known(words: Sequence[Word] | None) -> str:
    if not words or words[0].doubts:
        raise ValueError("is not known")
    return words[0].text


def _quotient(one: int, other: int) -> int:
    return abs(one) // abs(other) * (1 if (one < 0) is (other < 0) else -1)


_OPERATIONS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": lambda one, other: one + other,
    "-": lambda one, other: one - other,
    "*": lambda one, other: one * other,
    "/": _quotient,
    "%": lambda one, other: one - other * _quotient(one, other),
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_ASSIGN: Final = ("=", "+=", "-=", "*=", "/=", "%=", "++", "--")


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
    operators = [text_of(child) for child in node.children if not child.is_named]
    sign = next((each for each in operators if each not in ("${", "}")), "")
    if not named or named[0].type not in ("variable_name", "subscript", "special_variable_name"):
        yield _unknown(node)
        return
    name, index = _name_and_index(named[0])
    known = _words_in(name, variables)
    if not sign and index is not None and index not in _ALL:
        index = value_of(named[0].child_by_field_name("index"), variables).text
        one = variables.values.get(f"{name}[{index}]")
        if one is None and known and index.isdigit():
            one = known[int(index) : int(index) + 1]
        yield from _plain(node, one, quoted=quoted)
    elif not sign:
        yield from _variable(node, name, variables, quoted=quoted, as_words=index is not None)
    elif sign in ("#", "!", ":") and (part := _part_of(node, name, index, named, variables)):
        yield part._replace(splits=not quoted)
    elif sign in _DEFAULTS:
        yield from _with_default(node, name, named[1:], sign, variables, quoted=quoted)
    elif index is None and known and not known[0].doubts and node.children[1] == named[0]:
        found = _changed(known[0].text, sign, [text_of(each) for each in named[1:]])
        yield _unknown(node) if found is None else _Piece(found, splits=not quoted)
    else:
        yield _unknown(node)


def _part_of(
    node: Node, name: str, index: str | None, named: Sequence[Node], variables: Variables
) -> _Piece | None:
    """Return ``${#name}``, ``${!name}`` or ``${name:start:count}``; None for something else."""
    known = _words_in(name, variables)
    is_first = node.children[1] != named[0]
    if not known or (known[0].doubts and index is None):
        return None
    text = known[0].text
    match text_of(node.children[1 if is_first else 2]), index, named[1:]:
        case "#", None, [] if is_first:
            return _Piece(str(len(text)))
        case "#", "@" | "*", [] if is_first:
            return _Piece(str(len(known)))
        case "!", None, [] if is_first and (meant := _words_in(text, variables)):
            return _Piece(*meant[0])
        case ":", None, [start, *count] if not is_first:
            begin, length = (
                number_of(start, variables),
                [number_of(one, variables) for one in count],
            )
            if (
                begin is not None
                and begin >= 0
                and all(one is not None and one >= 0 for one in length)
            ):
                return _Piece(text[begin:][: length[0] if length else None])
    return None


def _changed(text: str, sign: str, given: Sequence[str]) -> str | None:
    """Return what ``${name#pattern}``, ``${name/pattern/text}``, ``${name,,}`` … make of a text."""
    if any(character in one for one in given for character in "$`\\\"'"):
        return None
    match sign, given:
        case ",,", []:
            return text.lower()
        case "^^", []:
            return text.upper()
        case "#" | "##" | "%" | "%%", [pattern]:
            fits = re.compile(translate(pattern)).match
            cuts = range(len(text) + 1) if sign in ("#", "%%") else range(len(text), -1, -1)
            if sign[0] == "#":
                return next((text[cut:] for cut in cuts if fits(text[:cut])), text)
            return next((text[:cut] for cut in cuts if fits(text[cut:])), text)
        case "/" | "//", [pattern, *rest] if pattern.isprintable() and pattern[0] not in "#%":
            if any(character in pattern for character in "*?["):
                return None
            return text.replace(pattern, "".join(rest), -1 if sign == "//" else 1)
    return None


def _with_default(
    node: Node,
    name: str,
    default: Sequence[Node],
    operator: str,
    variables: Variables,
    *,
    quoted: bool,
) -> Iterator[_Piece]:
    known = _words_in(name, variables)
    if known is not None and (known[0].text if known else ""):
        yield from _plain(node, known, quoted=quoted)
        return
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


def _words_in(name: str, variables: Variables) -> tuple[Word, ...] | None:
    if name in _ALL:
        return variables.arguments
    if name.isdigit():
        if variables.arguments is None or name == "0":
            return None
        return variables.arguments[int(name) - 1 : int(name)]
    return variables.values.get(name)


def _variable(
    node: Node, name: str, variables: Variables, *, quoted: bool, as_words: bool = False
) -> Iterator[_Piece]:
    known = _words_in(name, variables)
    if known is None:
        reason = "is not set in the script"
        if name.isdigit() or name in _ALL:
            reason = "depends on the arguments of the script"
        yield _Piece(text_of(node), (_doubt(node, reason),))
    elif as_words or name in _ALL:
        yield from _each(known, quoted=quoted)
    else:
        yield from _plain(node, known[:1], quoted=quoted)


def _plain(node: Node, words: Sequence[Word] | None, *, quoted: bool) -> Iterator[_Piece]:
    if words is None:
        yield _Piece(text_of(node), (_doubt(node, "is not set in the script"),))
        return
    for word in words:
        yield _Piece(word.text, word.doubts, splits=not quoted)


def _each(words: Sequence[Word], *, quoted: bool) -> Iterator[_Piece]:
    """Yield the words of an array, each a word of its own."""
    for number, word in enumerate(words):
        if number:
            yield _Piece("", ends_word=True)
        yield _Piece(word.text, word.doubts, splits=not quoted)


def as_mapping(words: Sequence[Word]) -> Mapping[str, tuple[str, ...]]:
    """Return the doubts of the words that have some, by their texts."""
    return {word.text: word.doubts for word in words if word.doubts}
