"""Run the toy task under `python -m torch.distributed.run`: a script for test_distributed.py."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from humanline.train.config import TrainConfig
from humanline.train.loop import train


def main() -> None:
    for text in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        train(TrainConfig.model_validate(text), show_progress=False)
    # Without its teardown: gloo aborts now and then in a finished process ("terminate called without an active
    # exception"), in a script of five lines of torch alone just as here, whether or not the group is destroyed first.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
