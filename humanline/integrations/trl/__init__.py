"""humanline inside the trainers of TRL (the extra `trl`): one call before `train()`."""

from humanline.integrations.trl.apply import apply_humanline
from humanline.integrations.trl.refusals import TrainerError

__all__ = ["TrainerError", "apply_humanline"]
