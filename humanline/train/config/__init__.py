"""What a recipe may say: sections, each one file, read into one frozen tree."""

from humanline.train.config.read import ConfigError as ConfigError
from humanline.train.config.read import load_config as load_config
from humanline.train.config.run import TrainConfig as TrainConfig
