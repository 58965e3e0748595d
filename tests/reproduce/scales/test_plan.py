"""Plans of larger models: which runs there are, what they are called, and which claims they speak to."""

from __future__ import annotations

import pytest

from humanline import recipes
from humanline.reproduce.paper_claims import CLAIMS
from humanline.reproduce.scales.paper import paper_scale
from humanline.reproduce.scales.plan import picked, reckoned_hours, said_cost, stem
from humanline.reproduce.scales.registry import SCALES
from humanline.reproduce.scales.small import small_scale
from humanline.train.config import load_config


@pytest.mark.parametrize("name", SCALES)
def test_every_run_is_of_a_shipped_recipe_and_its_configuration_is_valid(name):
    scale = SCALES[name]()
    assert scale.name == name and len({run.name for run in scale.runs}) == len(scale.runs)
    for run in scale.runs:
        config = load_config(recipes.path(run.recipe), run.overrides)
        assert run.differs and (run.hours is None) == (config.rounds is not None)  # of sampling nothing is reckoned
    assert set(scale.starts.values()) <= {run.name for run in scale.runs}


@pytest.mark.parametrize("name", SCALES)
def test_what_is_asked_is_a_claim_of_the_paper_and_is_asked_of_runs_that_are_planned(name):
    scale = SCALES[name]()
    claims = {(claim.says, objective) for claim in CLAIMS for objective in claim.numbers}
    stems = {stem(run.name) for run in scale.runs}
    for one in scale.asked:
        assert (one.says, one.objective) in claims
        assert one.first and one.second and not set(one.first) & set(one.second)
        assert {*one.first, *one.second, *([one.online] if one.online else [])} <= stems
        assert one.start in scale.starts
        objectives = {stem_of.split("/")[0 if name == "small" else 1] for stem_of in (*one.first, *one.second)}
        assert objectives == {one.objective}
    assert len({(one.says, one.objective) for one in scale.asked}) == len(scale.asked)


def test_both_sides_of_a_claim_and_its_start_are_of_one_model():
    """What is alike is measured by the gain of the same model, 8B or 27B."""
    for make in SCALES.values():
        scale = make()
        models: dict[str, set[str]] = {}
        for run in scale.runs:
            models.setdefault(stem(run.name), set()).add(load_config(recipes.path(run.recipe), run.overrides).model)
        for one in scale.asked:
            found = set.union(*(models[own] for own in (*one.first, *one.second, one.online) if own))
            assert found == models[stem(scale.starts[one.start])] and len(found) == 1


def test_table_3_is_3_objectives_by_4_variants_as_the_recipes_have_them():
    runs = picked(paper_scale(), ["table3"])
    assert [run.name for run in runs] == [
        f"table3/{objective}/{variant}"
        for objective in ("dpo", "kto", "grpo")
        for variant in ("offline", "humanline", "online", "online-humanline")
    ]
    assert all(run.recipe == run.name.replace("table3/", "llama3-8b-").replace("/", "-") for run in runs)
    assert not any(run.overrides for run in runs)


def test_the_small_plan_is_a_grid_of_k_within_a_day():
    runs = small_scale().runs
    assert len(runs) == 3 * 4 * 2 * 2 and sum(run.hours for run in runs) < 24
    config = load_config(recipes.path(runs[2].recipe), runs[2].overrides)
    assert (runs[2].name, config.reference.schedule.every) == ("dpo/k1/lr5e-6/seed0", 1)
    every = {config.reference.schedule.every for config in _configs("dpo") if config.transform.kind == "clip"}
    assert every == {1, 8, 32} and {config.optimizer.lr for config in _configs("kto")} == {5e-6, 2e-5}


def _configs(objective: str):
    return [load_config(recipes.path(run.recipe), run.overrides) for run in picked(small_scale(), [objective])]


def test_figure_5_takes_the_variant_apart():
    configs = {
        run.name.split("/")[-1]: load_config(recipes.path(run.recipe), run.overrides)
        for run in picked(paper_scale(), ["figure5/dpo"])
    }
    kinds = {name: (one.transform.kind, one.reference.schedule.kind) for name, one in configs.items()}
    assert kinds == {
        "clip-only": ("clip", "never"),
        "sync-only": ("none", "before_step"),
        "sampling": ("beta_rejection", "before_step"),
    }


def test_only_takes_whole_words_of_names_and_names_all_that_it_does_not_know():
    scale = paper_scale()
    assert [run.name for run in picked(scale, ["figure8/grpo/k8"])] == ["figure8/grpo/k8"]
    assert len(picked(scale, ["table3/dpo/", "table3/dpo/online"])) == 4 and picked(scale, []) == scale.runs
    assert len(picked(scale, ["table3/dpo/online"])) == 1  # and not online-humanline
    with pytest.raises(ValueError, match="'tabel3/dpo' \\(did you mean table3/dpo") as error:
        picked(scale, ["tabel3/dpo", "table3", "nonsense"])
    assert "'nonsense'; there are table3/dpo, table3/kto" in str(error.value)


def test_what_runs_cost_is_said_to_be_reckoned_for_how_many_and_for_what():
    """Runs that sample have no time, and are counted; hours are GPU hours, since 8B is more than one such GPU holds."""
    scale = paper_scale()
    said = said_cost(scale, picked(scale, ["table3/dpo"]))
    assert said.startswith("3 hours of an H100, at 150 Tflop/s, however many share a run, for training alone")
    assert "; of 2 runs that sample, no time was reckoned. Memory: 8B takes 133 GiB" in said
    said = said_cost(small_scale(), small_scale().runs)
    assert said.startswith("18 hours of one A100") and "no time was reckoned" not in said and "11 GiB" in said


def test_reckoned_hours_are_ten_operations_a_parameter_and_token():
    assert reckoned_hours("dpo", 1e9, teraflops=100) == pytest.approx(10 * 1e9 * 1.1e7 / 1e14 / 3600)
    assert stem("dpo/k1/lr5e-6/seed0") == "dpo/k1/lr5e-6" and stem("table3/dpo/seeds") == "table3/dpo/seeds"
