"""Nothing is told to anyone: runs and checks with local files try no connection and look up no name."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from humanline.cli import main
from tests.conftest import ROOT

# Read by Python at its start, in the process and in every Python process that it starts.
WATCHING = """
import os, socket, sys, traceback

def _watch(owner, name, put):
    real = getattr(owner, name)

    def noted(*args, **kwargs):
        sockets = [one for one in args if isinstance(one, socket.socket)]
        if not (sockets and sockets[0].family == getattr(socket, "AF_UNIX", None)):
            with open(os.environ["WATCHED"], "a") as file:
                where = "".join(traceback.format_stack(limit=6))
                print(f"{os.getpid()} {name} {args[1:]!r}\\n{where}", file=file)
            raise OSError(101, "no network here")
        return real(*args, **kwargs)

    put(owner, name, noted)

def watch(put=setattr):
    for name in ("connect", "connect_ex", "sendto", "bind"):
        _watch(socket.socket, name, put)
    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr"):
        _watch(socket, name, put)
    with open(os.environ["WATCHED"] + ".started", "a") as file:
        print(os.getpid(), file=file)
"""

WORK = """
import json, sys
from humanline.cli import main
for words in json.loads(sys.argv[1]):
    code = main(words)
    if code:
        sys.exit(f"{words}: {code}")
"""


@pytest.fixture
def watched(tmp_path):
    """Run commands, in one process, with a watched network; return what was tried and how many processes began."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(WATCHING + "\nwatch()\n")
    log = tmp_path / "tried"

    def run(*commands: list[str], program: str = WORK) -> tuple[str, int]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("HF_", "WANDB", "TRANSFORMERS_"))
        }
        environment = kept | {
            "PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}",
            "WATCHED": str(log),
            "HF_HOME": str(tmp_path / "hf"),
        }
        environment = {name: value for name, value in environment.items() if name != "DO_NOT_TRACK"}
        done = subprocess.run(
            [sys.executable, "-c", program, json.dumps(commands)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return log.read_text() if log.exists() else "", len(Path(f"{log}.started").read_text().splitlines())

    return run


def recipes(toy, folder: Path) -> tuple[str, str]:
    """An offline recipe, and one that samples in the process and scores with workers: math-verify and a function."""
    prompts = folder / "prompts.jsonl"
    rows = [json.loads(line)["prompt"] for line in Path(toy["pairs"]).read_text().splitlines()]
    prompts.write_text("".join(json.dumps({"prompt": prompt, "answer": "4"}) + "\n" for prompt in rows))
    plain = {
        "model": toy["model"],
        "output": str(folder / "offline"),
        "objective": {"kind": "dpo"},
        "transform": {"kind": "clip"},
        "data": {"train": toy["pairs"], "eval": toy["held_out"], "max_length": 64},
        "training": {"steps": 2, "batch_size": 4},
        "optimizer": {"lr": 1e-3},
    }
    online = plain | {
        "output": str(folder / "online"),
        "objective": {"kind": "grpo", "kl_coef": 0.1},
        "data": {"train": str(prompts), "max_length": 64},
        "reference": {"schedule": {"kind": "each_round"}},
        "source": {
            "kind": "rounds",
            "contexts_per_round": 4,
            "samples": 2,
            "count": 1,
            "steps": 1,
            "sampling": {"max_tokens": 4},
            "scoring": {
                "rewards": [{"kind": "math"}, {"kind": "function", "call": "tests.helpers.toy_rewards:digits"}],
                "workers": 1,
                "failed": 0.0,
            },
        },
        "training": {"batch_size": 2},
    }
    for name, tree in (("offline", plain), ("online", online)):
        (folder / f"{name}.yaml").write_text(json.dumps(tree))
    return str(folder / "offline.yaml"), str(folder / "online.yaml")


def test_no_connection_is_tried(toy, tmp_path, monkeypatch):
    """An offline run and an online one with its workers, both validated before, connect nowhere and look up no name."""
    log = tmp_path / "tried"
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(WATCHING + "\nwatch()\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{ROOT}")
    monkeypatch.setenv("WATCHED", str(log))
    for name in [name for name in os.environ if name.startswith(("HF_", "WANDB", "TRANSFORMERS_"))]:
        monkeypatch.delenv(name)
    here: dict[str, Any] = {}
    exec(WATCHING, here)
    here["watch"](monkeypatch.setattr)
    with pytest.raises(OSError, match="no network here"):
        socket.create_connection(("192.0.2.1", 9))
    assert "getaddrinfo" in log.read_text()
    log.unlink()
    for recipe in recipes(toy, tmp_path):
        for command in ("validate", "train"):
            assert main([command, recipe]) == 0
    assert not log.exists()
    assert len(Path(f"{log}.started").read_text().splitlines()) > 1  # workers of rewards are watched, too


@pytest.mark.slow
def test_no_connection_is_tried_by_a_fresh_process(toy, tmp_path, watched):
    """The same from the first import on: libraries ask nobody for a newer version."""
    offline, online = recipes(toy, tmp_path)
    words = [[command, recipe] for recipe in (offline, online) for command in ("validate", "train")]
    tried, processes = watched(*words)
    assert tried == "" and processes > 1  # the workers of rewards are watched, too
    assert (tmp_path / "offline/final").is_dir() and (tmp_path / "online/final").is_dir()


def test_a_connection_would_be_seen(watched):
    """The watch works: a connection that a program tries is noted, in the process and in one that it starts."""
    child = "import socket\\ntry:\\n    socket.create_connection(('192.0.2.1', 9))\\nexcept OSError:\\n    pass"
    program = f"import subprocess, sys\ncode = '''{child}'''\nexec(code)\nsubprocess.run([sys.executable, '-c', code])"
    tried, processes = watched(program=program)
    assert tried.count("getaddrinfo") >= 2 and processes == 2
