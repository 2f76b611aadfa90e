# SPDX-License-Identifier: Apache-2.0
"""Replace passwords and keys by a short digest, so that they do not leave the machine.

Two equal secrets have equal digests, so that a comparison still tells whether they differ.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

_WORDS: Final = re.compile(r"[A-Za-z][a-z]+|[A-Z]+(?![a-z])|[a-z]+")
_SECRET_WORDS: Final = frozenset(
    (
        "apikey",
        "auth",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "dsn",
        "jwt",
        "key",
        "keys",
        "pass",
        "passphrase",
        "passwd",
        "password",
        "private",
        "pw",
        "pwd",
        "sas",
        "secret",
        "secrets",
        "signature",
        "token",
        "webhook",
    )
)
# Names that are written as one word: SSHPASS, PGPASSWORD, MYSQLPWD.
_SECRET_END: Final = re.compile(
    r"(?<!by)(?<!com)(?<!sur)(?:pass|passw(or)?d|pwd|secret|apikey|token)$"
)
# Words before "token" or "key" that make something harmless of it: pad_token, num_key_value_heads.
_HARMLESS: Final = frozenset(
    (
        "additional",
        "begin",
        "bos",
        "cls",
        "end",
        "eos",
        "image",
        "mask",
        "num",
        "pad",
        "per",
        "query",
        "sep",
        "sort",
        "special",
        "stop",
        "unk",
        "with",
    )
)
# Values that cannot be a secret, under any name.
_PLAIN_VALUE: Final = re.compile(
    r"|true|false|yes|no|on|off|none|null|[-+]?\d{1,6}(\.\d*)?|\[\]|\{\}|\(\)|set\(\)", re.I
)
# Words that also speak of other things: tied_weights_keys lists the names of parameters.
_DOUBTFUL_WORDS: Final = frozenset(("key", "keys", "token"))
_OF_ACCESS: Final = frozenset(
    ("access", "api", "encryption", "hf", "hub", "ssh", "sign", "signing")
)
_AROUND_NAMES: Final = re.compile(r"[\s,:'\"\[\](){}]+")
_PART_OF_NAME: Final = re.compile(r"[A-Za-z]*\d{0,4}")
# Folders, as in PWD and OLDPWD, are no passwords.
_FOLDER: Final = re.compile(r"~?/|[A-Za-z]:[\\/]|\.{1,2}(/|$)")
_HIDDEN: Final = re.compile(r"<hidden [0-9a-f]{8}>")
_IN_URL: Final = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)")
_FORMS: Final = re.compile(
    r"\b(?:sk-|gh[opsu]_|github_pat_|glpat-|hf_|xox[abp]-|AKIA|eyJ)[A-Za-z0-9_.\-]{12,}"
)


# Words of a value, and what a random key looks like: long, of many different characters, its
# letters and digits mixed. Digests of known things have names that say so.
_VALUE_WORD: Final = re.compile(r"(?<![\w./~+-])[A-Za-z0-9+/]{20,}={0,2}(?![\w.])")
_HEX: Final = re.compile(r"[0-9a-f]{32,}|[0-9A-F]{32,}")
_DIGEST_WORDS: Final = frozenset(
    ("checksum", "commit", "crc", "digest", "git", "hash", "md", "revision", "sha", "uuid", "id")
)
_MIN_ENTROPY: Final = 3.6
_MIN_CHANGES: Final = 4


def hide_secrets(name: str, value: str) -> str:
    """Return a value with secrets replaced, safe to store.

    Args:
        name: name of the variable or argument.
        value: its value.

    Returns:
        The value itself; ``<hidden xxxxxxxx>`` if its name speaks of a secret; or the value with
        the secret part replaced (a password in a URL, something of the form of an access token,
        a long word that only a generator of random keys makes).
    """
    if _PLAIN_VALUE.fullmatch(value.strip()):
        return value
    words = [word.lower() for word in _WORDS.findall(name)]
    if _is_secret_name(words) and not _is_known_kind(words, value):
        return _digest(value)
    value = _IN_URL.sub(lambda found: _digest(found[0]), value)
    value = _FORMS.sub(lambda found: _digest(found[0]), value)
    if _DIGEST_WORDS.intersection(words):
        return value
    return _VALUE_WORD.sub(lambda found: _without_key(found[0]), value)


def hidden_names(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the values in which something was hidden."""
    for name, value in values.items():
        if _HIDDEN.search(str(value)):
            yield name


def _is_secret_name(words: list[str]) -> bool:
    for position, word in enumerate(words):
        is_secret = word in _SECRET_WORDS or _SECRET_END.search(word) is not None
        if is_secret and not _HARMLESS.intersection(words[:position]):
            return True
    return False


def _is_known_kind(words: list[str], value: str) -> bool:
    """Return whether a value is a folder, or names of parameters, under a name that has these."""
    if words[-1].endswith("pwd"):
        return _FOLDER.match(value) is not None
    secret = _SECRET_WORDS.intersection(words)
    if not secret or not secret <= _DOUBTFUL_WORDS or _OF_ACCESS.intersection(words):
        return False
    is_list = value.startswith(("[", "{", "("))
    return (is_list or "keys" in words) and all(
        map(_is_parameter, filter(None, _AROUND_NAMES.split(value)))
    )


def _is_parameter(text: str) -> bool:
    """Return whether a text is like ``layers.0.lm_head.weight``: words joined by dots and lines."""
    parts = re.split(r"[._\\*^$]+", text)
    return len(parts) > 1 and all(map(_PART_OF_NAME.fullmatch, parts))


def _without_key(word: str) -> str:
    if _HEX.fullmatch(word):
        return _digest(word)
    if "/" in word and (word.startswith("/") or word.islower()):  # a path
        return word
    kinds = [one.isdigit() for one in word if one.isalnum()]
    changes = sum(one is not other for one, other in pairwise(kinds))
    counts = Counter(word).values()
    entropy = -sum(count / len(word) * math.log2(count / len(word)) for count in counts)
    is_random = changes >= _MIN_CHANGES and entropy >= _MIN_ENTROPY
    return _digest(word) if is_random else word


def _digest(secret: str) -> str:
    # 32 bits: enough to compare two runs, too few to be sure of a guess.
    digest = hashlib.blake2b(secret.encode(errors="surrogateescape"), digest_size=4)
    return f"<hidden {digest.hexdigest()}>"
