"""Harm done to one process of a run that a launcher starts: Python imports this where PYTHONPATH names its folder.

HARM is {"rank", "module", "name", "how", "after", "seconds"} in JSON: at its call of that number (from 0) a function of
humanline is slow, hangs or raises, or its process kills itself. It is put in place as soon as its module is there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time


def harm(rank: str, module: str, name: str, how: str, after: int, seconds: float) -> None:
    if os.environ.get("RANK") != rank:
        return
    while "humanline.train.setup" not in sys.modules or module not in sys.modules:
        time.sleep(0.005)
    owner = sys.modules[module]
    *path, last = name.split(".")
    for part in path:
        while not hasattr(owner, part):
            time.sleep(0.005)
        owner = getattr(owner, part)
    true, calls = getattr(owner, last), []

    def harmful(*args, **kwargs):
        calls.append(1)
        if len(calls) == after + 1:
            with open("harmed", "w") as note:
                note.write(str(os.getpid()))
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "raise":
                raise KeyError("made by a test")
            time.sleep(seconds)
        return true(*args, **kwargs)

    setattr(owner, last, harmful)


if "HARM" in os.environ:
    threading.Thread(target=harm, kwargs=json.loads(os.environ["HARM"]), daemon=True).start()
