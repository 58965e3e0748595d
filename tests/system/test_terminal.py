"""Nothing that comes from outside reaches a terminal raw, and no secret reaches a file."""

from __future__ import annotations

import contextlib
import json
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humanline.system import terminal
from humanline.system.progress import RunProgress
from humanline.system.terminal import redact, redacted, visible

HOSTILE = {
    "\x1b[31mred\x1b[0m": r"\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "\x9b2J": r"\x9b2J",  # the one-byte form of ESC [
    "over\rwritten\x08\x7f": r"over\rwritten\x08\x7f",
    "a\u202egnp.exe": r"a\u202egnp.exe",  # reads right to left from here
    "\u2066hidden\u2069": r"\u2066hidden\u2069",
    "zero\u200bwidth\ufeff": r"zero\u200bwidth\ufeff",
    "line\u2028paragraph\u2029next\x85": r"line\u2028paragraph\u2029next\x85",
    "lone \ud800 surrogate": r"lone \ud800 surrogate",
    "tag \U000e0041": r"tag \U000e0041",
    "filler\u3164": r"filler\u3164",
    "two\nlines\tand a tab": r"two\nlines\tand a tab",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_characters_become_escapes(text):
    """Each kind of character that would not be seen as itself is written as an escape."""
    assert visible(text) == HOSTILE[text]


def test_plain_text_of_any_language_stays():
    """Letters, accents, emoji and spaces of every width are left alone; a line feed is where it is asked to be."""
    text = "Grüße aus Köln, 東京\u3000и Москва 🙂 \u00a0 e\u0301 नमस्ते \\x1b"
    assert visible(text) == text
    assert visible("a\nb\tc", keep="\n") == "a\nb\\tc"


@given(st.text())
def test_nothing_but_printable_characters_and_spaces_comes_out(text):
    """Whatever goes in, what comes out can be encoded, holds no control character, and stays as it is from then on."""
    out = visible(text)
    out.encode()
    assert all(char.isprintable() or char.isspace() for char in out) and not set(out) & set("\n\r\t\x0b\x0c\x85\u2028")
    assert visible(out) == out


def test_progress_prints_no_escape_sequence(capsys):
    """A line of a run's progress shows control characters and markup of its names as text."""
    RunProgress(1, True).say("\x1b[2Jfile [red]name[/red] :smile:\nnext")
    assert capsys.readouterr().err == "\\x1b[2Jfile [red]name[/red] :smile:\nnext\n"


# ---------------------------------------------------------------------------------------------------------------------
# Secrets


ENVIRONMENT = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "MY_TOKENS": 'pa"ss\\word',
    "db_password": "correct horse",
    "GOOGLE_CREDENTIALS": "first line of a key\nsecond line of a key\n",
    "APIKEY2": "s3cret/with+slash",
    "SHORT_KEY": "true",
    "TOKENIZERS_PARALLELISM": "innocent-value",
    "KEYBOARD_LAYOUT": "de-nodeadkeys",
}


@pytest.mark.parametrize(
    "text,clean",
    [
        ("key=0123456789abcdef0123456789abcdef01234567.", "key=***."),
        ("commit 89abcdef0123456789abcdef0123456701234567", None),  # 40 digits that are no key of this environment
        (json.dumps('pa"ss\\word'), '"***"'),
        (repr('x pa"ss\\word'), "'x ***'"),
        ("correct horse battery", "*** battery"),
        ("    second line of a key", "    ***"),
        ("https://h/?k=s3cret%2Fwith%2Bslash", "https://h/?k=***"),
        ("true innocent-value de-nodeadkeys", None),
        ("hf_abcdefghijklmnopqrstuvwxyz123456 x", "*** x"),
        ("sk-proj-abcdefghij1234567890_x", "***"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "***"),
        ("AKIAIOSFODNN7EXAMPLE", "***"),
        ("risk-averse ask-me-anything-whatever-else hf_model", None),
        ("https://user:pass@host/x", "https://***@host/x"),
        ("postgres://u:p@ss@host", "postgres://***@host"),
        ("https://host/a@b mail me@host", None),
        ("https://token@host and http://me:pw@other", "https://***@host and http://***@other"),
    ],
)
def test_secrets_are_taken_out(text, clean):
    """Secrets of the environment, tokens of known form and logins in URLs are replaced; what only looks alike stays."""
    assert redact(text, ENVIRONMENT) == (text if clean is None else clean)


@pytest.mark.parametrize(
    "text,clean",
    [
        ("ready: humanline train /tmp/alice_2/x.yaml; alice_2.yaml", None),
        ("/home/alice_2 my-alice_2 alice_20 ~/alice_2/x src/alice_2.py", None),
        ("wrong key alice_2. Bearer alice_2", "wrong key ***. Bearer ***"),
        ("alice_2", "***"),
        ('?key=alice_2&x {"key": "alice_2"} key:alice_2, (alice_2)', '?key=***&x {"key": "***"} key:***, (***)'),
        (repr("no:\nalice_2\n") + " k%3Dalice_2%20x", "'no:\\n***\\n' k%3D***%20x"),
        ("/tmp/0123456789-long-one/x", "/tmp/***/x"),
        ("x/s3.cret/y xs3.crety", "x/***/y x***y"),
    ],
)
def test_a_short_secret_is_no_part_of_a_word_or_path(monkeypatch, text, clean):
    """A short one of letters and digits is taken out where it stands alone; long and odd ones wherever they are."""
    monkeypatch.setattr(terminal, "_remembered", {"alice_2", "0123456789-long-one", "s3.cret"})
    assert redact(text, {}) == (text if clean is None else clean)


def test_a_tree_stays_a_tree(monkeypatch):
    """Redacting a tree of values keeps its shape, its numbers and valid JSON, even where a secret is a number."""
    monkeypatch.setenv("SEED_KEY", "12345678")
    tree = {"seed": 12345678, "output": "runs/12345678", "list": ["12345678", None, 1.5, True], "12345678": {}}
    clean = {"seed": 12345678, "output": "runs/12345678", "list": ["***", None, 1.5, True], "***": {}}
    assert redacted(tree) == clean and json.loads(json.dumps(redacted(tree))) == clean


def test_a_terminal_that_was_closed_ends_nothing(monkeypatch):
    """The bar of a run whose terminal goes away is silent from then on; without it the run would end by an error."""
    (ours, theirs), ended = os.openpty(), False
    monkeypatch.setenv("TERM", "xterm")
    with contextlib.suppress(OSError), open(theirs, "w") as stderr:  # closing it fails, as it must
        monkeypatch.setattr(sys, "stderr", stderr)
        progress = RunProgress(3, True)
        assert progress.console.is_terminal
        with progress:
            progress.say("before")
            os.close(ours)
            for step in range(3):
                progress.say("after")
                progress.step(step, {"loss": 1.0, "tokens_per_second": 1.0})
            progress.bar.refresh()
        ended = True
        monkeypatch.undo()
    assert ended
