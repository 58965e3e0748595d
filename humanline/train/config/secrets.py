"""Settings as they are written down and compared: what is a secret by its name is hidden, and known from then on.

A recipe may carry secrets where it says what is sent to a server or run as a command: in `url`, and anywhere below
`new_weights`. There a text is a secret if its name looks like one: the key of a mapping, an option of a command
(`--token x`, `--api-key=x`), a variable (`TOKEN=x`), a header (`Authorization: Bearer x`), a query (`?api_key=x`), the
login of a URL. A secret without a name cannot be told from other text.

`written` is the one way by which settings get into files, reports and trackers. Runs are compared with their secrets
left out, so that a key may be replaced before `--resume`; everything else is compared as it truly is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, unquote_plus

from humanline.system.terminal import HIDDEN, looks_secret, redacted, remember

_SENT, _URL = "new_weights", "url"  # what is sent elsewhere, and where
# Of settings alone; as words of other names, such as those of environment variables, they are too common.
_SHORT_NAME = re.compile(r"(?<![A-Za-z])(auth|pass|pwd|pw|sig|pin)(?![A-Za-z])", re.IGNORECASE)
_COUNTS = re.compile(r"tokens$|^(max|min)[_-]|[_-](count|limit|length)$", re.IGNORECASE)  # `max_tokens: 16`
_STANDS_FOR = re.compile(r"\{(path|name)\}|\$\{?\w+\}?")  # filled in later, and no secret by itself
_SCHEME = re.compile(r"(?:bearer|basic|token|digest|negotiate|apikey)\s+", re.IGNORECASE)

_LOGIN = re.compile(r"(?P<before>\b[a-zA-Z][a-zA-Z0-9+.-]*://)(?P<value>[^\s/?#\"'<>]*)(?=@)")
_ONE_LOGIN = re.compile(r"(?P<before>^[a-zA-Z][a-zA-Z0-9+.-]*://)(?P<value>.*)(?=@)")  # whatever characters it has
_QUERY = re.compile(r"(?P<before>[?&;#](?P<name>[^=?&;#\s]+)=)(?P<value>[^&;#\s\"']*)")
_OPTION = re.compile(
    r"(?P<before>(?<![\w-])-{1,2}(?P<name>\w[\w.-]*)\s+)(?P<value>\"[^\"]*\"|'[^']*'|[^\s\"'-][^\s\"']*)"
)
_ASSIGNED = re.compile(
    r"(?P<before>(?<![\w.-])(?P<name>[\w.-]+)[\"']?\s*[:=]\s*)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|(?:(?:bearer|basic|token|digest|negotiate|apikey)\s+)?[^\s\"'&,;}\]]+)",
    re.IGNORECASE,
)
_WHOLE = re.compile(r"(?P<before>-{0,2}(?P<name>[\w.-]+)(?:=|:\s*))(?P<value>.+)", re.DOTALL)


def written(config: Any) -> dict[str, Any]:
    """Return the settings of a configuration as they are written down: without secrets.

    Parameters
    ----------
    config : TrainConfig, or another section

    Returns
    -------
    dict
        Plain JSON, with `***` in place of what is a secret by its name, its form or its value (`terminal.redact`).
    """
    tree: dict[str, Any] = config.model_dump(mode="json")
    learn(tree)
    result: dict[str, Any] = redacted(hidden(tree))
    return result


def learn(tree: Any) -> None:
    """Make `terminal.redact` replace the secrets in a tree of settings, in whatever text they turn up later."""
    found: set[str] = set()
    hidden(tree, found)
    remember(found)


def hidden(tree: Any, found: set[str] | None = None, *, sent: bool = False) -> Any:
    """Return settings with `***` in place of what is a secret by its name.

    Parameters
    ----------
    tree : JSON
        Names may be dotted.
    found : set of str, optional
        The secrets are added to it.
    sent : bool
        Whether all of it is sent elsewhere, so that names count everywhere.
    """
    return _hide(tree, set() if found is None else found, sent, False)


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Return the SHA-256 of settings as one JSON text: all at once, so that none can be guessed by itself."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def _hide(tree: Any, found: set[str], sent: bool, secret: bool) -> Any:
    if isinstance(tree, Mapping):
        result = {}
        for key, value in tree.items():
            parts = str(key).split(".")
            inside = sent or _SENT in parts
            named = any(map(_is_secret, parts)) or (key == "value" and _is_secret(str(tree.get("name"))))
            result[key] = _hide(value, found, inside, inside and (secret or named))
            if not inside and parts[-1] == _URL and isinstance(value, str):
                result[key] = _in_url(value, found, _ONE_LOGIN)
        return result
    if isinstance(tree, list | tuple):
        if not sent or secret:
            return [_hide(value, found, sent, secret) for value in tree]
        return _words(list(tree), found)
    if secret:
        return _hide_value(tree, found)
    return _in_text(tree, found) if sent and isinstance(tree, str) else tree


def _is_secret(name: str) -> bool:
    return (looks_secret(name) or _SHORT_NAME.search(name) is not None) and _COUNTS.search(name) is None


def _hide_value(value: Any, found: set[str]) -> Any:
    """Return `***` for a text or number that a name makes a secret; what stands for something else stays."""
    if value is None or isinstance(value, bool) or value in ("", HIDDEN):
        return value
    if not isinstance(value, str):
        found.add(str(value))
        return HIDDEN
    scheme = _SCHEME.match(value)
    start = scheme.end() if scheme else 0
    quotes = value[:1] if len(value) > 1 and value[:1] == value[-1:] and value[:1] in "\"'" else ""
    if quotes:
        return f"{quotes}{_hide_value(value[1:-1], found)}{quotes}"
    if not value[start:] or _STANDS_FOR.fullmatch(value[start:]):
        return value
    found |= {value[start:], unquote(value[start:]), unquote_plus(value[start:])}
    return value[:start] + HIDDEN


def _words(words: list[Any], found: set[str]) -> list[Any]:
    """Return the words of a command, or another list, with the values of options hidden."""
    result, before = [], ""
    for word in words:
        if not isinstance(word, str):
            result.append(_hide(word, found, True, False))
            before = ""
            continue
        option = before.lstrip("-") if before.startswith("-") and "=" not in before else ""
        pair = len(words) == 2 and len(result) == 1 and " " not in before  # ["Authorization", "Bearer x"]
        if _is_secret(option or (before if pair else "")) and not word.startswith("--"):
            result.append(_hide_value(word, found))
        elif before in ("-u", "--user", "--proxy-user") and ":" in word:
            login, _, password = word.partition(":")
            result.append(f"{login}:{_hide_value(password, found)}")
        else:
            result.append(_in_text(word, found))
        before = word
    return result


def _in_text(text: str, found: set[str]) -> str:
    """Hide what is named in a text: logins, queries, options, variables, headers."""
    text = _in_url(text, found)
    parts = _named(_ASSIGNED, _named(_OPTION, text, found), found)
    whole = _WHOLE.fullmatch(text)
    if whole is not None and _is_secret(whole["name"]):  # all of it may be one secret, or its first word
        return whole["before"] + str(_hide_value(whole["value"], found))
    return parts


def _named(pattern: re.Pattern[str], text: str, found: set[str]) -> str:
    """Hide the values that a pattern finds behind names of secrets."""
    result, at = [], 0
    while (match := pattern.search(text, at)) is not None:
        result.append(text[at : match.end("before")])
        at = match.end("before")
        if _is_secret(match["name"]):
            result.append(str(_hide_value(match["value"], found)))
            at = match.end()
    return "".join([*result, text[at:]])


def _in_url(text: str, found: set[str], logins: re.Pattern[str] = _LOGIN) -> str:
    def login(match: re.Match[str]) -> str:
        user, colon, password = match["value"].partition(":")
        if colon:
            _hide_value(password, found)
        elif user:
            _hide_value(user, found)
        return match["before"] + (HIDDEN if match["value"] else "")

    return _named(_QUERY, logins.sub(login, text), found)
