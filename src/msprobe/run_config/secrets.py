# SPDX-License-Identifier: Apache-2.0
"""Replace passwords and keys by a short digest, so that they do not leave the machine.

Two equal secrets have equal digests, so that a comparison still tells whether they differ.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

_WORDS: Final = re.compile(r"[A-Za-z][a-z]+|[A-Z]+(?![a-z])|[a-z]+")
_SECRET_WORDS: Final = frozenset(
    (
        "apikey",
        "auth",
        "cookie",
        "credential",
        "credentials",
        "dsn",
        "key",
        "keys",
        "pass",
        "passphrase",
        "passwd",
        "password",
        "private",
        "secret",
        "secrets",
        "signature",
        "token",
    )
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
_PLAIN_VALUE: Final = re.compile(r"|true|false|yes|no|on|off|none|null|[-+]?\d{1,6}(\.\d*)?", re.I)
_IN_URL: Final = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)")
_FORMS: Final = re.compile(
    r"\b(?:sk-|gh[opsu]_|github_pat_|glpat-|hf_|xox[abp]-|AKIA|eyJ)[A-Za-z0-9_.\-]{12,}"
)


def hide_secrets(name: str, value: str) -> str:
    """Return a value with secrets replaced, safe to store.

    Args:
        name: name of the variable or argument.
        value: its value.

    Returns:
        The value itself; ``<hidden xxxxxxxx>`` if its name speaks of a secret; or the value with
        the secret part replaced (a password in a URL, something of the form of an access token).
    """
    if _PLAIN_VALUE.fullmatch(value.strip()):
        return value
    if _is_secret_name(name):
        return _digest(value)
    value = _IN_URL.sub(lambda found: _digest(found[0]), value)
    return _FORMS.sub(lambda found: _digest(found[0]), value)


def _is_secret_name(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    for position, word in enumerate(words):
        if word in _SECRET_WORDS and not _HARMLESS.intersection(words[:position]):
            return True
    return False


def _digest(secret: str) -> str:
    # 32 bits: enough to compare two runs, too few to be sure of a guess.
    digest = hashlib.blake2b(secret.encode(errors="surrogateescape"), digest_size=4)
    return f"<hidden {digest.hexdigest()}>"
