"""Names of a study: each says which data, which reference and which transform its runs have."""

from __future__ import annotations

import re

import pytest

from humanline.schedule import AfterStep, BeforeStep, EachRound, Never
from humanline.sim.lag import Lag
from humanline.sim.objectives import Dpo, Grpo, Kto
from humanline.sim.run import Fixed, Rollouts
from humanline.sim.variants import BETA, OBJECTIVES, TASKS, VARIANTS, blind, make_run
from humanline.theory import ClipRange

#: The paper's clip, in nats (section 5.2.1).
PAPER = ClipRange(-1.5, 1.5)
SYNC = BeforeStep(every=1)
NAMED = {
    "offline": (Fixed(), Never(), None),
    "online": (Rollouts(16), EachRound(round_steps=16), None),
    "online+humanline": (Rollouts(16), SYNC, PAPER),
    "sync only": (Fixed(), SYNC, None),
    "clip only": (Fixed(), Never(), PAPER),
    "beta rejection": (Fixed(), SYNC, BETA),
    "beta rejection k=16": (Fixed(), BeforeStep(every=16), BETA),
    "random detachment": (Fixed(), SYNC, blind(BETA)),
    "trust region": (Fixed(), AfterStep(every=64), None),
    "offline worse data": (Fixed(tilt=-1.0), Never(), None),
    "offline better data": (Fixed(tilt=1.0), Never(), None),
    "offline+humanline worse data": (Fixed(tilt=-1.0), SYNC, PAPER),
    "offline+humanline better data": (Fixed(tilt=1.0), SYNC, PAPER),
    "never synced, of the mean age": (Fixed(), Lag(8), None),
    "never synced, of the same ages": (Fixed(), Lag(15, 7), None),
}


def meant(name):
    """Source, schedule and transform that a name with numbers in it says."""
    base, *said = re.split(r" (?=\S+=)", name)
    numbers = dict(part.split("=") for part in said)
    assert set(numbers) <= {"k", "clip", "every", "quartile"}
    quartile, every = (int(numbers[key]) if key in numbers else None for key in ("quartile", "every"))
    source = Fixed(quartile=quartile) if base.startswith(("offline", "sync only")) else Rollouts(every)
    low, high = map(float, numbers.get("clip", "-1.5,1.5").split(","))
    if base == "online":
        return source, EachRound(round_steps=every), None
    return source, BeforeStep(every=int(numbers.get("k", 1))), ClipRange(low, high) if "humanline" in base else None


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_what_its_name_says(name):
    """Source, schedule and transform of every variant, written down a second time or read off its name."""
    variant = VARIANTS[name]
    assert (variant.source, variant.schedule, variant.transform) == (NAMED[name] if name in NAMED else meant(name))


def test_every_number_that_the_paper_varies_has_its_variants():
    """Syncs and samplings every 1 to 64 steps in powers, all quartiles, and the ranges of Table 6."""
    found = {
        start: sorted(name.removeprefix(start) for name in VARIANTS if name.startswith(start))
        for start in ("online every=", "offline+humanline quartile=", "offline+humanline k=16 clip=", "sync only k=")
    }
    assert list(found.values()) == [
        ["1", "16", "4", "64"],
        ["1", "2", "3", "4"],
        ["-1,1.5", "-1,2", "-1,3", "-2,1.5"],
        ["15", "16"],
    ]
    for start in ("offline+humanline k=", "online+humanline every=64 k="):
        assert {int(n.removeprefix(start)) for n in VARIANTS if n.startswith(start) and "clip" not in n} == {
            2**i for i in range(7)
        }


def test_objectives_and_problems_are_those_of_the_paper_and_of_the_study():
    """Table 3's numbers, GRPO's wider clip where the reference never moves, and 32 responses a step in groups."""
    assert {name: OBJECTIVES[name] for name in ("dpo", "kto", "grpo")} == {
        "dpo": Dpo(0.1),
        "kto": Kto(0.25, 1.1, 1.0),
        "grpo": Grpo(0.15, 0.01),
    }
    assert {make_run("bandit", "grpo", 0.1, name).objective.clip_eps for name in ("offline", "clip only")} == {0.5}
    sizes = {task: make_run(task, "dpo", 0.1, "offline") for task in TASKS}
    assert {task: (run.groups, run.group_size) for task, run in sizes.items()} == {
        "bandit": (16, 2),
        "sequence": (16, 2),
        "verifiable": (8, 4),
    }
