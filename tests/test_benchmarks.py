"""The benchmarks measure what they say: intervals, the order of timings, and the real loop run step by step."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks import __main__ as command
from benchmarks import large, large_run, simulator, trl_steps
from benchmarks.inside import Inside, covered
from benchmarks.interleave import interleave, ratio_interval
from benchmarks.plot import plot_results, target_of
from benchmarks.report import Result, failure, not_measured, timing_row, write_result
from benchmarks.runs import (
    QUICK,
    REFERENCES,
    Stepped,
    bare_dpo,
    own_accelerate,
    pausing_loop,
    prepare,
    run_config,
    training_batches,
)
from humanline.sim.run import simulate
from humanline.train.loop import train
from humanline.train.run.metrics import read_metrics
from tests.conftest import ROOT


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


def test_trainers_that_take_turns_do_not_share_the_state_of_accelerate():
    """What one run sets in accelerate's state of the process is there again at its next turn, and not outside of it."""
    from accelerate.state import GradientState

    first: dict = {}
    before = dict(GradientState._shared_state)
    with own_accelerate(first):
        GradientState()._set_sync_gradients(False)
    with own_accelerate({}):
        assert GradientState().sync_gradients
    assert GradientState._shared_state == before
    with own_accelerate(first):
        assert not GradientState().sync_gradients


@pytest.mark.parametrize("objective", ["dpo", "kto", "grpo"])
def test_trl_is_given_the_tokens_of_our_own_steps(base, tmp_path, objective):
    """Every row for TRL holds the ids of one of our units, mismatched pairs included, in the order of our steps."""
    config = trl_steps.our_config(base, tmp_path, QUICK, objective, "live", steps=2, checkpointing=False)
    steps = training_batches(config)
    rows = iter(trl_steps.rows_for_trl(objective, steps))
    for step in steps:
        other_answers = []
        for unit in (unit for micro in step for unit in micro.units):
            row = next(rows)
            names = {"dpo": ("chosen_ids", "rejected_ids"), "kto": ("completion_ids",)}.get(objective)
            answers = row["answers"] if names is None else [row[name] for name in names]
            assert [tuple(row["prompt_ids"] + answer) for answer in answers] == [one.ids for one in unit.sequences]
            if objective == "kto":
                assert row["label"] == unit.desirable
                assert row["KL_completion_ids"] != row["completion_ids"]
                other_answers.append(row["prompt_ids"] + row["KL_completion_ids"])
            if objective == "grpo":
                assert row["scores"] == list(unit.scores)
        ours = [
            block.input_ids[place, :length].tolist()
            for block in (micro.mismatched for micro in step if micro.mismatched is not None)
            for place, length in enumerate(block.lengths)
        ]
        assert sorted(other_answers) == sorted(ours)
    assert next(rows, None) is None


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["dpo", "kto", "grpo"])
def test_trl_takes_the_same_step(base, tmp_path, objective):
    """TRL's trainer and ours have the same loss and gradient norm, step after step where the method is the same."""
    pytest.importorskip("trl")
    found = {}
    with pausing_loop():
        sides = {
            side: trl_steps.start(base, tmp_path / side, QUICK, objective, side, steps=4) for side in ("live", "TRL")
        }
        for _ in range(3):  # in turns, as they are timed
            for side in sides.values():
                side.run.step()
        for name, side in sides.items():
            found[name] = side.measured()
            side.run.close()
    count = 3 if objective == "dpo" else 1
    for ours, theirs in zip(found["live"], found["TRL"], strict=True):
        assert len(ours) == len(theirs) == 3
        assert ours[:count] == pytest.approx(theirs[:count], rel=1e-4, abs=1e-5)  # float32, summed in another order
        assert abs(ours[0]) > 0.01


@pytest.mark.parametrize("width", [3, 16])
def test_flops_are_those_that_torch_counts(width):
    """The formula's forward pass is torch's own count, which takes both halves of the attention matrix for work."""
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import LlamaConfig, LlamaForCausalLM

    size = large_run.QUICK
    settings = LlamaConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_heads,
        attn_implementation="eager",  # plain products, which are counted
    )
    with FlopCounterMode(display=False) as counter:
        ids = torch.zeros((5, width), dtype=torch.long)
        hidden = LlamaForCausalLM(settings).model(input_ids=ids, use_cache=False).last_hidden_state
        hidden[:, :2].flatten(0, 1) @ torch.zeros(size.hidden, size.vocab)
    other_half = 5 * size.layers * 2 * width * width * size.hidden
    assert large_run.forward_flops(size, 5, width, 10) + other_half == counter.get_total_flops()


def test_targets_are_read_from_what_the_table_says():
    """A target about the ratio is a number, one about something else is none."""
    assert [target_of(text) for text in ("upper end <= 1.02", "<= 0.125", ">= .95", "< 1", "<= 135 GiB")] == [
        1.02,
        0.125,
        0.95,
        1.0,
        135.0,
    ]
    assert {target_of(text) for text in ("", "== 0", "one <= 1e-5", "<= 135 GiB, 11.5 s")} == {None}


def test_the_picture_shows_the_results_and_is_the_same_twice(tmp_path):
    """The same results give the same bytes, other results others; without results there is an error."""
    with pytest.raises(FileNotFoundError, match="holds no results to draw"):
        plot_results(tmp_path)
    facts = {"cpu": "a processor", "torch_threads": 1, "gpu": None, "versions": {"torch": "2"}}
    seen = []
    for ours in (1.0, 1.0, 3.0):
        rows = [
            timing_row("1", "ours / theirs", [ours, 1.1 * ours], [2.0, 2.0], limit=1.0, upper_end=True),
            not_measured("2", "ours / another's", "needs a GPU", "<= 2"),
        ]
        write_result(tmp_path, "steps", Result({}, rows), facts)
        svg, png = plot_results(tmp_path)
        assert png.stat().st_size > 10_000
        seen.append(svg.read_bytes())
    assert seen[0] == seen[1] != seen[2]


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


def test_a_row_without_a_number_is_never_drawn_as_one(tmp_path):
    """What failed or was not measured is told in words in the picture, and has no dot."""
    facts = {"cpu": "a processor", "torch_threads": 1, "gpu": None, "versions": {"torch": "2"}}
    rows = [failure("7", "step / another", "out of memory", "<= 2"), not_measured("1", "this / that", "needs a GPU")]
    write_result(tmp_path, "large", Result({}, rows), facts)
    drawn = plot_results(tmp_path)[0].read_text()
    assert "failed: out of memory" in drawn and "not measured: needs a GPU" in drawn
    assert "PathCollection" not in drawn


def test_spans_that_overlap_count_once():
    """The time in which a GPU works is that in which at least one kernel runs."""
    assert covered([(0, 10), (2, 5), (8, 12), (20, 21)]) == 13


@pytest.mark.parametrize("lr", [0.0, 1e-2])
def test_every_log_ratio_of_a_run_is_looked_at(base, tmp_path, lr):
    """All counted tokens of all steps; the largest is that of the metrics' rms, so 0 where nothing is learned."""
    inside = Inside()
    with inside.looked_at():
        config = run_config(base, tmp_path / "run", REFERENCES["ahead"], steps=3, lr=lr)
        metrics = read_metrics(train(config, show_progress=False).metrics_file)
    largest, tokens = inside.log_ratios()
    rms = [row["log_ratio_rms"] for row in metrics if "step" in row]
    assert tokens == sum(int(micro.block.mask.sum()) for step in training_batches(config) for micro in step)
    assert (largest == 0 and max(rms) == 0) if lr == 0 else largest >= max(rms) > 0
    assert set(inside.seconds()) == {"scoring", "forward", "backward", "clip", "update"} and not inside.missing
    assert large_run.log_ratio_row("it", largest, tokens, 3, None).met is (lr == 0)
    assert large_run.log_ratio_row("it", float("nan"), tokens, 3, None).met is False
    assert large_run.log_ratio_row("it", 0.0, 0, 3, None).note == "not measured: no log-ratio was seen"


@pytest.mark.parametrize("place", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_row_of_the_large_benchmark_runs_on_a_cpu(place):
    """The first rows, tiny: log-ratios are 0, parts are told, and what a CPU cannot tell is not measured."""
    part = large.parts_of_large(True, False)[place]
    rows = [row for result in large_run.measure(**part.arguments) for row in result.rows]
    assert len(rows) == (8 if place == 0 else 6)
    (bits,) = (row for row in rows if row.number == "6")
    assert bits.met and "tokens of 5 steps" in bits.note
    measured = [row for row in rows if row.value is not None]
    assert [row.what.rpartition(": ")[2] for row in measured] == ["step", "largest |log-ratio| at learning rate 0"]
    assert all(row.note.startswith("not measured: needs a GPU") for row in rows if row not in measured)
    assert "scoring 0." in rows[-1].note and "update 0." in rows[-1].note


@pytest.mark.parametrize("large_model", [large_run.LLAMA_8B, large_run.LLAMA_1B, large_run.SHALLOW])
@pytest.mark.parametrize("lengths", ["one", "real"])
def test_rows_of_the_large_benchmark_fill_what_its_models_take(tmp_path, large_model, lengths):
    """The data of runs that only a GPU makes are what a run takes: rows of 1024 tokens where they have one length."""
    workload = large_run.workload_for(large_model, False, lengths=lengths)
    base = prepare(tmp_path, workload, pairs=2 * workload.batch, weights=False)
    given = large_run.configured(base, tmp_path / "run", "float32 masters", "right", "ahead", 2)
    blocks = [micro.block for step in training_batches(given) for micro in step]
    found = [length for block in blocks for length in block.lengths]
    assert len(found) == 4 * workload.batch and max(found) <= 1024
    assert (set(found) == {1024}) if lengths == "one" else (max(found) > 512)


def test_rows_that_compare_processes_need_both():
    """A comparison with a run that failed says which number it lacks."""
    one = {"step": 2.0, "tokens": 50.0, "padded tokens": 100.0, "allocated GiB": 50.0}
    told = {row.number: row for row in large.rows_of_large({"padded": one, "free": one | {"step": 1.0}, "8-bit": one})}
    assert told["8"].value == 1.0 and told["8"].met
    assert told["1"].note == "not measured: step of 'live' was not"
    assert told["3b"].value is None and told["3b"].note == "not measured: allocated GiB of 'live' was not"
    (nothing,) = large.rows_of_large({})
    assert nothing.note == "not measured: needs a GPU with 140 GiB"


@pytest.mark.slow
def test_the_command_writes_rows_and_the_machine(tmp_path, capsys):
    """`python -m benchmarks --quick` prints every row and writes it, with the machine, its versions and no path."""
    assert command.main(["--quick", "--minutes", "15", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for name in command.KNOWN:
        tree = json.loads((tmp_path / f"{name}-cpu.json").read_text())
        assert tree["rows"] and all(row["what"] in shown for row in tree["rows"])
        assert tree["machine"]["versions"]["torch"] == torch.__version__
        assert str(tmp_path) not in json.dumps(tree)
        if name in ("equality", "large"):
            bits = [row for row in tree["rows"] if row["target"].endswith("== 0")]
            assert bits and all(row["met"] for row in bits)


def test_the_page_says_of_which_benchmark_no_file_was_kept():
    """docs/speed.md sends its reader to the raw timings of every benchmark but those that it names as without."""
    text = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    results = {path.stem.rpartition("-")[0] for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    said = re.search(r"of whose run no file was kept\s+\(`python -m benchmarks ([a-z]+)`", text)
    assert (set() if said is None else {said[1]}) == set(command.KNOWN) - results


def test_the_page_says_how_many_rounds_its_ratios_are_of():
    """docs/speed.md has the rounds of the committed results: of steps, of log-probabilities, of TRL's trainers."""
    text = " ".join((ROOT / "docs" / "speed.md").read_text(encoding="utf-8").split())
    found = re.search(r"\((\d+) alternating rounds\), log-probabilities \((\d+)\), TRL's trainers [^(]*\((\d+)\)", text)
    assert found is not None
    results = [ROOT / "benchmarks" / "results" / f"{name}-cpu.json" for name in ("steps", "logprobs", "trl")]
    rounds = [json.loads(path.read_text(encoding="utf-8"))["settings"]["rounds"] for path in results]
    assert [int(number) for number in found.groups()] == rounds
