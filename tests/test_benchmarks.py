"""The benchmarks measure what they say: intervals, the order of timings, and the real loop run step by step."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks import simulator
from benchmarks.__main__ import main
from benchmarks.interleave import interleave, ratio_interval
from benchmarks.runs import QUICK, REFERENCES, Stepped, bare_dpo, pausing_loop, prepare, run_config
from humanline.sim.run import simulate
from humanline.train.loop import train
from humanline.train.metrics import read_metrics


def test_a_constant_ratio_has_no_width():
    """If every pair has the same ratio the interval is that ratio, whatever the machine's speed did meanwhile."""
    below = np.array([1.0, 5.0, 2.0, 8.0])
    found = ratio_interval(list(1.5 * below), list(below))
    assert (found.ratio, found.low, found.high) == (1.5, 1.5, 1.5)


def test_the_interval_is_that_of_the_median():
    """On 101 evenly spread ratios the interval is near the exact one from the order statistics, ranks 41 and 61."""
    ratios = [1 + i / 100 for i in range(101)]
    found = ratio_interval(ratios, [1.0] * 101)
    assert found.ratio == 1.5
    assert found.low == pytest.approx(1.40, abs=0.02)
    assert found.high == pytest.approx(1.60, abs=0.02)


def test_sides_of_different_lengths_are_refused():
    """Timings without a partner cannot be compared."""
    with pytest.raises(ValueError, match="the same number of timings"):
        ratio_interval([1.0, 2.0], [1.0])


def test_interleave_runs_every_variant_once_a_round_in_changing_order():
    """Each round holds each variant once, the order differs between rounds and is the same for the same seed."""

    def order(seed: int) -> list[str]:
        calls: list[str] = []
        variants = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
        seconds = interleave(variants, rounds=20, warm_up=3, seed=seed)
        assert {name: len(kept) for name, kept in seconds.items()} == {"a": 20, "b": 20}
        return calls

    calls = order(0)
    rounds = {tuple(calls[i : i + 2]) for i in range(0, 46, 2)}
    assert rounds == {("a", "b"), ("b", "a")}
    assert calls == order(0) != order(1)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("workload"), QUICK)


def test_stepping_runs_the_real_loop(base, tmp_path):
    """Two interleaved stepped runs take one step a call and end with the very weights of runs left alone."""
    alone, stepped = {}, {}
    for key in ("ahead", "live"):
        result = train(run_config(base, tmp_path / f"{key}-alone", REFERENCES[key], steps=3), show_progress=False)
        alone[key] = load_file(result.model / "model.safetensors")
    with pausing_loop():
        runs = {}
        for key in ("ahead", "live"):
            config = run_config(base, tmp_path / key, REFERENCES[key], steps=3)
            runs[key] = Stepped(lambda config=config: train(config, show_progress=False))
        for done in (1, 2, 3):
            for key, run in runs.items():
                run.step()
                assert [row["step"] for row in read_metrics(tmp_path / key / "metrics.jsonl")] == list(range(done))
        for key, run in runs.items():
            run.step()
            assert run.finished
            stepped[key] = load_file(tmp_path / key / "final" / "model.safetensors")
    for key, weights in alone.items():
        assert all(torch.equal(weights[name], stepped[key][name]) for name in weights)


def test_the_bare_loop_does_the_same_work(base, tmp_path):
    """The bare loop that the real one is held against ends with the same weights, up to rounding."""
    config = run_config(base, tmp_path / "run", REFERENCES["free"], steps=3)
    weights = load_file(train(config, show_progress=False).model / "model.safetensors")
    initial = load_file(f"{base['model']}/model.safetensors")
    bare = bare_dpo(config).model.state_dict()
    assert any(not torch.equal(weights[name], initial[name]) for name in weights)
    for name, value in weights.items():
        torch.testing.assert_close(bare[name].cpu(), value, rtol=0, atol=1e-5)


def test_a_closed_run_ends_and_a_failed_one_raises(base, tmp_path):
    """A run can be given up between two steps, and what it raises reaches whoever steps it."""
    with pausing_loop():
        config = run_config(base, tmp_path / "run", REFERENCES["ahead"], steps=5)
        run = Stepped(lambda: train(config, show_progress=False))
        run.step()
        run.close()
        assert run.finished and not run.is_alive()
        assert not (tmp_path / "run" / "final").exists()
        with pytest.raises(ValueError, match="holds a run already"):
            Stepped(lambda: train(config, show_progress=False)).step()


@pytest.mark.parametrize("groups", [1, 3])
def test_the_simulator_is_held_against_the_same_work(groups):
    """The kernel's code and the numpy loop end with the simulator's own parameters, and clip as many tokens."""
    run, seeds = simulator.described(simulator.Size(3, 12, groups, 1, 0)), range(3)
    world = run.task.draw(seeds)
    trace = simulate(run, seeds)
    given, uniforms = simulator.problems(world), simulator.uniforms_of(run, seeds)
    params, outside = simulator.train_by_hand(*given, uniforms)
    np.testing.assert_allclose(params, trace.params, rtol=0, atol=1e-12)
    assert outside == round(float(trace.outside.sum()) * uniforms[0].size) > 0
    for seed in seeds:
        alone = simulator.train_one(*(part[seed] for part in given), uniforms[seed])
        np.testing.assert_allclose(alone, trace.params[seed], rtol=0, atol=1e-12)


def test_other_work_is_not_timed():
    """Parameters that differ by more than rounding, or are not finite, end the benchmark."""
    assert simulator.require_same("it", np.array([1.0]), np.array([1.0 + 1e-12])) < 1e-11
    for found in (1.0 + 1e-6, np.nan):
        with pytest.raises(RuntimeError, match="it does other work than the simulator"):
            simulator.require_same("it", np.array([found]), np.array([1.0]))


@pytest.mark.slow
def test_the_command_writes_rows_and_the_machine(tmp_path, capsys):
    """`python -m benchmarks --quick` prints every row and writes it, with the machine, its versions and no path."""
    main(["simulator", "logprobs", "equality", "--quick", "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    for name in ("simulator", "logprobs", "equality"):
        (file,) = tmp_path.glob(f"{name}-*.json")
        tree = json.loads(file.read_text())
        assert all(row["what"] in shown for row in tree["rows"])
        assert tree["machine"]["versions"]["torch"] == torch.__version__
        assert str(tmp_path) not in file.read_text()
    assert all(row["met"] for row in tree["rows"])
