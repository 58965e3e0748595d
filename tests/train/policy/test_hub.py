"""Models on the hub: known by the shapes that ship with the recipes, or out of reach, which is said at once."""

from __future__ import annotations

import socket
import subprocess
import tomllib

import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError

from humanline import recipes
from humanline.cli import main
from humanline.reproduce.scales.registry import SCALES
from humanline.train.config import load_config
from humanline.train.policy import hub
from humanline.train.policy.errors import ModelError
from humanline.train.policy.hub import HUB, read_shape, refuse_out_of_reach, shipped_shape
from humanline.train.policy.load import load_outline, load_tokenizer
from humanline.train.preflight.dry_run import FLOPS, STRETCHES
from tests.conftest import ROOT

# As the models' own pages give them.
PUBLISHED = {
    "meta-llama/Meta-Llama-3-8B-Instruct": 8_030_261_248,
    "google/gemma-2-27b-it": 27_227_128_320,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
}


@pytest.fixture
def offline(monkeypatch):
    """No network and nothing in the cache; what is looked up nevertheless is kept."""
    asked: list[str] = []

    def lookup(host, *_, **__):
        asked.append(str(host))
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    monkeypatch.setattr(hub, "is_at_hand", lambda name: False)
    return asked


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shape_has_the_parameters_that_are_published(name):
    """The architecture that ships has, to the last one, the parameters of the model; its README says the same."""
    outline = load_outline(HUB + name, read_shape(HUB + name))
    assert sum(parameter.numel() for parameter in outline.parameters()) == PUBLISHED[name]
    assert f"| `{name}` | {PUBLISHED[name]:,} |" in (recipes.FOLDER / "shapes" / "README.md").read_text()


def test_every_model_that_a_recipe_trains_has_a_shape_and_no_other():
    """The files are those of the hub's models in the shipped recipes and in the plans of larger scales."""
    named = {load_config(recipes.path(name)).model for name in recipes.names()}
    for run in (one for make in SCALES.values() for one in make().runs):
        named.add(load_config(recipes.path(run.recipe), run.overrides).model)
    there = {path.stem.replace("--", "/", 1) for path in (recipes.FOLDER / "shapes").glob("*.json")}
    assert there == {name.removeprefix(HUB) for name in named if name.startswith(HUB)} == set(PUBLISHED)
    assert read_shape("meta-llama/Meta-Llama-3-8B-Instruct") is None  # a folder of that name
    assert read_shape("hub:../shapes/README") is None and read_shape("hub:nobody/nothing") is None


def test_the_package_ships_the_shapes():
    """The wheel is all of the package that git does not ignore, and so is what it is built from."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert build["wheel"] == {"packages": ["humanline"]} and "/humanline" in build["sdist"]["include"]
    shapes = [str(path) for path in (recipes.FOLDER / "shapes").iterdir()]
    ignored = subprocess.run(["git", "check-ignore", *shapes], cwd=ROOT, capture_output=True, text=True, check=False)
    assert len(shapes) == len(PUBLISHED) + 1 and ignored.stdout == ""
    builders = pytest.importorskip("hatchling.builders.wheel")
    listed = {file.distribution_path for file in builders.WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {f"humanline/recipes/shapes/{path.rpartition('/')[2]}" for path in shapes} <= listed


def test_an_estimate_of_a_recipe_needs_no_network(offline, monkeypatch, capsys):
    """It looks up nothing, says that a shape was taken and no tokenizer, and how to get the model."""

    def dry(*_, **__):
        """Nothing, in place of a dry run, which is slow."""
        return dict.fromkeys([*STRETCHES, "held", *FLOPS], 0.0)

    monkeypatch.setattr("humanline.train.preflight.memory.dry_run", dry)
    words = ["estimate", "llama3-8b-dpo-humanline", "--gpu-memory", "79", "--gpus", "2", "--tflops", "788"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "LlamaForCausalLM: 8,030,261,248 parameters, all trained" in out
    assert "so its shape was taken that ships with humanline, and no tokenizer or data were looked at" in out
    assert (
        "`hf download meta-llama/Meta-Llama-3-8B-Instruct`" in out and "every row is taken to have 2048 tokens" in out
    )
    assert main(["validate", "--no-data", "gemma2-27b-dpo-online"]) == 0
    assert offline == []


def test_a_model_that_is_at_hand_goes_before_its_shape(offline, monkeypatch):
    """A shape is taken only where the cache of the hub has no configuration of the model."""
    assert shipped_shape("hub:google/gemma-2-27b-it") is not None
    monkeypatch.setattr(hub, "is_at_hand", lambda name: name == "google/gemma-2-27b-it")
    assert shipped_shape("hub:google/gemma-2-27b-it") is None
    assert shipped_shape("hub:Qwen/Qwen2.5-1.5B-Instruct") is not None


def test_what_is_in_the_cache_is_found(tmp_path, monkeypatch):
    """The cache is asked by its own package, for the file that every model has."""
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: f"{tmp_path}/{name}/{file}")
    assert hub.is_at_hand("org/name")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: object())  # known not to exist
    assert not hub.is_at_hand("org/name")


@pytest.mark.parametrize("load", [load_tokenizer, load_outline])
def test_a_model_out_of_reach_is_said_at_once(offline, load):
    """One request (a name or two), no second try, and what to do: fetch it elsewhere, or name a folder."""
    with pytest.raises(ModelError) as refused:
        load("hub:nobody/nothing-2b")
    assert len(offline) <= 2  # none where the environment says that there is no network
    for part in ("is not in the cache", "cannot be reached", "`hf download nobody/nothing-2b`", "the folder of a copy"):
        assert part in str(refused.value)
    assert "cannot be loaded" not in str(refused.value)


def test_a_gated_model_says_where_to_ask(monkeypatch):
    """The hub's refusal becomes the page where the licence is accepted; its other answers are left to its client."""
    monkeypatch.setattr(hub, "is_at_hand", lambda name: False)

    def answer(error):
        def ask(url):
            assert url.endswith("/org/name/resolve/main/config.json")
            raise error.__new__(error)

        monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", ask)

    answer(GatedRepoError)
    with pytest.raises(ModelError, match=r"accept its licence at https://huggingface\.co/org/name, and log in"):
        refuse_out_of_reach("org/name", "model 'hub:org/name'")
    answer(huggingface_hub.errors.RepositoryNotFoundError)
    refuse_out_of_reach("org/name", "model 'hub:org/name'")
