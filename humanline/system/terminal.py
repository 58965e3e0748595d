r"""Text from outside, made fit to be shown and kept: control characters visible, secrets taken out.

Rows, file names, YAML keys and error messages come from outside. Printed as they are, an escape sequence in one of them
could repaint the terminal, and a bidirectional override could make a line read as another. Written to a file as they
are, a configuration or a traceback could carry an access token along.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

LONGEST_PART = 600  # characters of a text of others that are shown whole
HIDDEN = "***"
SHORTEST_SECRET = 8  # characters; a shorter value would turn up in innocent text
SHORTEST_NAMED = 6  # of one that a recipe names as such
# Letters and marks that show as nothing at all, beyond the categories that `visible` escapes.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0")


def visible(text: str, keep: str = "") -> str:
    r"""Write every character that would not be seen as itself as an escape: `\x1b`, `\u202e`, `\U000e0041`.

    These are control characters (C0, DEL, C1), and with them every terminal escape sequence; format characters
    (bidirectional overrides, zero-width characters, byte order marks); line and paragraph separators; lone surrogates,
    private and unassigned code points; blank letters. Spaces of any width stay. A backslash stays too: the result is
    for reading, not for reading back.

    Parameters
    ----------
    text : str
    keep : str
        Characters to leave alone, such as a line feed where lines are wanted.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if _shows(char) or char in keep else _escape(char) for char in text)


def _shows(char: str) -> bool:
    return (char.isprintable() or unicodedata.category(char) == "Zs") and char not in _BLANK


def _escape(char: str) -> str:
    named = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}.get(char)
    if named is not None:
        return named
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shorten(text: str, limit: int = LONGEST_PART) -> str:
    """Return a text with its middle left out, and a count of what is, if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"


# ---------------------------------------------------------------------------------------------------------------------
# Secrets

_SECRET_NAME = re.compile(
    r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTHORIZATION|SIGNATURE|COOKIE)S?(?![A-Z])", re.IGNORECASE
)  # TOKENIZERS_... is none
_KNOWN_TOKENS = re.compile(
    r"\b(?:"
    r"(?:hf|api_org)_[A-Za-z0-9]{16,}"  # Hugging Face
    r"|sk-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"  # GitHub
    r"|A(?:KIA|SIA)[A-Z0-9]{16}"  # AWS
    r")"
)
# A short secret may be a word of innocent text, such as the name of a user: it counts where it stands alone, not as a
# part of a longer word, a path or a file's name. Escapes and URLs put letters before it that are none of its word.
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,15}")
_BEFORE = r"(?:(?<![\w/-])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))"
_BEHIND = r"(?![\w/-]|\.\w)"
_URL_LOGIN = re.compile(r"(?P<scheme>\b[a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/?#\"'<>]*@")


def looks_secret(name: str) -> bool:
    """Return whether a variable or setting of this name is likely to hold a secret."""
    return _SECRET_NAME.search(name) is not None


_remembered: set[str] = set()  # secrets of this process's recipes


def remember(secrets: Iterable[str]) -> None:
    """Make `redact` replace these texts from now on, where they are at least 6 characters long."""
    _remembered.update(text for text in map(str.strip, secrets) if len(text) >= SHORTEST_NAMED and set(text) != {"*"})


def is_secret(value: str) -> bool:
    """Return whether a value as a whole is a secret of a recipe, or holds a URL's login or a token of known form."""
    return value.strip() in _remembered or _hide_forms(value) != value


def redact(text: str, environment: Mapping[str, str] | None = None, *, everywhere: bool = False) -> str:
    """Replace secrets in a text by `***`.

    Secrets of a recipe (`remember`); values of environment variables whose names look like secrets (a word that ends in
    TOKEN, KEY, SECRET, PASSWORD, PASSPHRASE, CREDENTIAL, AUTHORIZATION, SIGNATURE or COOKIE, or their plurals) where
    they are at least 8 characters long; both also as JSON, `repr` or a URL would write them; tokens of known form
    (Hugging Face, OpenAI, Anthropic, GitHub, AWS), known to the environment or not; and the login of a URL. A Weights &
    Biases key is 40 hexadecimal digits, as is any commit, and is only known by its value.

    A value of fewer than 16 characters that are all letters, digits, `-` or `_` could be a word of innocent text. It is
    replaced where it stands alone, not within a longer word, a path or a file's name; all others are wherever they are.

    Parameters
    ----------
    text : str
    environment : mapping, optional
        None = that of the process.
    everywhere : bool
        Short values within words and paths too: for what leaves the machine.
    """
    return _hidden(text, _known(os.environ if environment is None else environment, everywhere))


def _known(environment: Mapping[str, str], everywhere: bool) -> str:
    """Return the pattern of all secrets that are known by their values; empty where there are none."""
    found: set[str] = set()
    named = ((name, value.strip()) for name, value in environment.items())
    values = {value for name, value in named if len(value) >= SHORTEST_SECRET and looks_secret(name)}
    for value in values | _remembered:
        found |= {value, json.dumps(value)[1:-1], repr(value)[1:-1], quote(value), quote(value, safe="")}
        # A secret of several lines, such as a private key, is cut up by whatever indents or quotes it.
        found |= {line for line in map(str.strip, value.splitlines()) if len(line) >= SHORTEST_SECRET}
    return "|".join(map(re.escape if everywhere else _places, sorted(found, key=len, reverse=True)))


def _hidden(text: str, known: str) -> str:
    return _hide_forms(re.sub(known, HIDDEN, text) if known else text)


def _places(secret: str) -> str:
    """Return the pattern of where a secret is replaced."""
    pattern = re.escape(secret)
    return f"{_BEFORE}{pattern}{_BEHIND}" if _PLAIN.fullmatch(secret) else pattern


def _hide_forms(text: str) -> str:
    return _KNOWN_TOKENS.sub(HIDDEN, _URL_LOGIN.sub(rf"\g<scheme>{HIDDEN}@", text))


def told(text: str, keep: str = "") -> str:
    """Return a text as it is shown: without secrets (`redact`), control characters as escapes (`visible`)."""
    return visible(redact(text), keep)


def show(text: str) -> None:
    """Print a text as it is shown (`told`)."""
    print(told(text, keep="\n"))


def redacted(tree: Any, *, everywhere: bool = False) -> Any:
    """Return a tree of mappings and lists with every text in it redacted, keys too, and every number as it is."""
    return _all_hidden(tree, _known(os.environ, everywhere))


def _all_hidden(tree: Any, known: str) -> Any:
    if isinstance(tree, str):
        return _hidden(tree, known)
    if isinstance(tree, Mapping):
        return {_all_hidden(key, known): _all_hidden(value, known) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_all_hidden(value, known) for value in tree]
    return tree
