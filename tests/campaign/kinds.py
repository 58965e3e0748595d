"""The kinds of harm, by name, in the order of the table."""

from __future__ import annotations

from tests.campaign import answers, data, disks, kills, locks, models, recipes, rewards, servers

KINDS = {
    "kills": kills,
    "disks": disks,
    "locks": locks,
    "data": data,
    "recipes": recipes,
    "models": models,
    "servers": servers,
    "rewards": rewards,
    "answers": answers,
}
