"""Run the toy task under `python -m torch.distributed.run`: a script for test_distributed.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from humanline.train.config import TrainConfig
from humanline.train.device import leave_processes
from humanline.train.loop import train


def main() -> None:
    for text in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        train(TrainConfig.model_validate(text), show_progress=False)
    leave_processes()


if __name__ == "__main__":
    main()
