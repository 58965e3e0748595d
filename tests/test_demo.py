"""The demo: its task, its table, and a short run of the whole."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from humanline import demo as module
from humanline.cli import main
from humanline.demo import Outcome, demo, table
from humanline.system.files import OutputError
from tests.helpers.dying import die
from tests.helpers.processes import gone


def outcome(name: str, variant: str, seed: int, score: float) -> Outcome:
    return Outcome(name, variant, seed, score, 0.8, -1.0, 0.01 if variant == "humanline" else 0.0, None)


def test_the_table_counts_only_differences_whose_interval_excludes_zero():
    """A row is starred, and counted as better or worse, only where the paired interval excludes 0."""
    rows = []
    for name, gains in {"up": (0.1, 0.11, 0.12), "down": (-0.1, -0.11, -0.1), "unclear": (0.3, -0.2, 0.1)}.items():
        for seed, gain in enumerate(gains):
            rows += [outcome(name, "offline", seed, 0.5 + seed), outcome(name, "humanline", seed, 0.5 + seed + gain)]
    text = table(rows, 0.4)
    starred = [line.split()[0] for line in text.splitlines() if line.split() and "*" in line.split()]
    assert starred == ["up", "down"]
    assert "better in 1 and worse in\n1 of 3 comparisons" in text


def test_each_offline_variant_is_held_against_the_same_humanline_runs():
    """Three offline variants of a setting make three rows, each the difference to that setting's one humanline cell."""
    scores = {"offline eps 0.15": 0.5, "offline eps 0.5": 0.7, "offline eps 1": 0.8, "humanline": 0.6}
    rows = [outcome("GRPO", v, seed, score + seed / 100) for v, score in scores.items() for seed in range(2)]
    lines = [line.split() for line in table(rows, 0.4).splitlines() if line.startswith("GRPO  offline")]
    assert [line[1:4] for line in lines] == [name.split() for name in scores if name != "humanline"]
    assert [line[4] for line in lines] == ["0.505", "0.705", "0.805"] and {line[7] for line in lines} == {"0.605"}
    assert [line[10] for line in lines] == ["+0.100", "-0.100", "-0.200"]


def test_offline_grpo_has_the_papers_clip_humanlines_and_the_widest():
    """Offline GRPO is run at eps 0.15, 0.5 (Table 3) and 1, humanline once at 0.15 (Table 3), all else being equal."""
    from humanline.train.config.objective import GrpoObjective

    (grpo,) = (setting for setting in module.SETTINGS if setting.objective["kind"] == "grpo")
    found = {v: GrpoObjective.model_validate(grpo.objective_of(v)) for v in (*grpo.offline, "humanline")}
    assert [found[v].clip_eps for v in grpo.offline] == [0.15, 0.5, 1.0] and found["humanline"].clip_eps == 0.15
    assert len({(o.kl_coef, o.normalise, o.advantage_std) for o in found.values()}) == 1


def test_the_score_is_the_share_of_letters_in_place():
    """Missing and surplus letters count against an answer."""
    assert module._right("cab", "abc") == 1.0
    assert module._right("cab", "acb") == pytest.approx(1 / 3)
    assert module._right("cab", "abcd") == 0.75
    assert module._right("cab", "") == 0.0


def test_the_reward_reads_the_last_message():
    """The reward of tiny-online is the score of the demo, of the word in the prompt's last message."""
    prompt = [{"role": "system", "content": "Sort."}, {"role": "user", "content": "cab"}]
    assert module.letters_in_place(prompt, "abd") == pytest.approx(2 / 3)
    assert module.letters_in_place(prompt, "") == 0.0


def test_words_do_not_repeat():
    """Training, pair and held-out words are disjoint, and the same at every call."""
    words = module._words(500, seed=1)
    assert len(set(words)) == 500 and words == module._words(500, seed=1)


def test_an_output_in_use_is_refused(tmp_path):
    """The demo overwrites nothing."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="not an empty folder"):
        demo(tmp_path)


def test_a_worker_that_dies_ends_the_demo_with_words(tmp_path, monkeypatch, capsys):
    """Nobody waits for a process that was killed: the command ends with 2 and says what happened and what to do."""
    monkeypatch.setattr(module, "_start_model", die)
    monkeypatch.setattr(module, "_one_thread", None)  # which takes seconds to import what no worker needs here
    assert main(["demo", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "a worker process has died" in said and f"remove {tmp_path / 'out'} and start again" in said


@pytest.mark.parametrize("how", ["done", "killed"])
def test_workers_do_not_outlive_their_command(tmp_path, how):
    """A command that ends, or is killed while a worker is busy, leaves no worker behind."""
    work = tmp_path / "work.py"
    work.write_text(
        "import os, sys, time\n"
        "from humanline._workers import worker_processes\n"
        "def busy(seconds):\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getpid()}} ')\n"
        "    time.sleep(seconds)\n"
        "if __name__ == '__main__':\n"
        "    with worker_processes(1, then='') as pool:\n"
        "        pool.submit(busy, float(sys.argv[1])).result()\n"
    )
    process = subprocess.Popen([sys.executable, str(work), "0" if how == "done" else "1000"])
    if how == "killed":
        while process.poll() is None and not (tmp_path / "pid").exists():
            time.sleep(0.02)
        process.kill()
    assert process.wait(60) == (0 if how == "done" else -signal.SIGKILL)
    until = time.monotonic() + 60
    while not (tmp_path / "pid").read_text().strip() and time.monotonic() < until:
        time.sleep(0.02)
    assert gone([int((tmp_path / "pid").read_text())])


def test_counts_are_checked(tmp_path):
    """At least one seed and one process are needed."""
    with pytest.raises(ValueError, match="must be >= 1"):
        demo(tmp_path / "out", seeds=0)


@pytest.mark.slow
def test_the_whole_demo(tmp_path, capsys):
    """The demo learns its task and leaves its table, its outcomes and every model where it says."""
    outcomes = demo(tmp_path / "out", seeds=1)
    assert len(outcomes) == sum(len(setting.offline) + 1 for setting in module.SETTINGS)
    assert {o.variant for o in outcomes if o.setting.startswith("GRPO")} == {*module.OFFLINE_CLIPS, "humanline"}
    printed = capsys.readouterr().out
    assert (tmp_path / "out" / "table.txt").read_text().strip() in printed
    words = [(tmp_path / "out" / name).read_text().splitlines() for name in ("words.jsonl", "words-held-out.jsonl")]
    assert list(map(len, words)) == [module.PAIR_WORDS, module.HELD_OUT_WORDS] and not {*words[0]} & {*words[1]}
    assert len(list((tmp_path / "out" / "runs").glob("*/final/model.safetensors"))) == len(outcomes)
    assert all(0.6 < o.accuracy <= 1 for o in outcomes)
