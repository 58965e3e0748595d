"""What the pages of the documentation say is so: links lead somewhere, code runs, commands and settings exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import runpy
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
import yaml

from humanline.cli import main
from humanline.evaluate.declared import read_plan
from humanline.train.config import load_config
from humanline.train.config.run import AdapterConfig
from tests.conftest import ROOT
from tests.helpers.messages import is_said, texts
from tests.helpers.pages import GUIDES, PAGES, anchors, blocks, commands, links, name, settings_tables

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SITE = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
TRL = ROOT / "docs" / "switch-from-trl.md"
#: Pages whose code has tests of its own, with the file that holds them.
ELSEWHERE = {
    "docs/own-parts.md": "tests/train/step/test_own_parts.py",
    "docs/python.md": "tests/train/test_given.py",
    "docs/reading-the-curves.md": "tests/train/run/test_reading_the_curves.py",
}
RUN_HERE = [page for page in GUIDES if name(page) not in ELSEWHERE]
#: What a block of YAML that is a part of a recipe is a part of.
WHOLE = {
    "model": "my-model",
    "output": "runs/one",
    "objective": {"kind": "dpo"},
    "data": {"train": "pairs.jsonl"},
    "training": {"steps": 10},
    "optimizer": {"lr": 1e-5},
}
#: Blocks of YAML that are no recipes: what reads them, and the section that begins them.
PLANS = {"docs/measuring.md": "test"}


class TestLinks:
    """Links of the pages, without a network."""

    @pytest.mark.parametrize("page", PAGES, ids=name)
    def test_every_link_leads_to_a_file_and_to_a_heading_in_it(self, page):
        """A link within the repository leads to a file or folder of it, and its anchor to a heading there."""
        for link in links(page):
            if re.match(r"[a-z]+:", link):
                assert link.startswith("https://"), link
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists() and target.is_relative_to(ROOT), link
            if anchor and target.suffix == ".md":
                assert anchor in anchors(target), link

    def test_links_are_looked_at(self):
        """There are many, with anchors among them: the test above does not pass for want of links."""
        found = [link for page in PAGES for link in links(page)]
        assert len(found) > 150 and sum("#" in link for link in found) > 20


class TestCode:
    """Code of the pages."""

    @pytest.mark.parametrize("page", [page for page in RUN_HERE if blocks(page, "python")], ids=name)
    def test_python_runs_in_the_order_of_the_page(self, page, tmp_path, monkeypatch):
        """Every block runs, after those before it; one about TRL, which need not be here, is Python at least."""
        monkeypatch.chdir(tmp_path)
        names: dict = {}
        for block in blocks(page, "python"):
            code = compile(block.text, f"{name(page)}:{block.line}", "exec")
            if "from trl import" not in block.text:
                exec(code, names)

    @pytest.mark.parametrize("page", [page for page in RUN_HERE if blocks(page, "yaml")], ids=name)
    def test_recipes_are_valid(self, page, tmp_path):
        """Every block of YAML is a recipe that can be read, a part of one, or a plan of a comparison."""
        for number, block in enumerate(blocks(page, "yaml")):
            path = tmp_path / f"{number}.yaml"
            path.write_text(block.text, encoding="utf-8")
            if name(page) in PLANS and block.text.startswith(PLANS[name(page)]):
                assert read_plan(path)
                continue
            given = yaml.safe_load(block.text)
            if not given.keys() >= WHOLE.keys():
                path.write_text(yaml.safe_dump(WHOLE | given), encoding="utf-8")
            assert load_config(path)

    def test_code_without_a_test_here_has_one_elsewhere(self):
        """A page that this module leaves out is named by the tests that hold it."""
        for page, tests in ELSEWHERE.items():
            assert page in (ROOT / tests).read_text(encoding="utf-8")

    def test_behavioural_numbers_are_those_of_the_page(self):
        """The remarks below the calls, or beside them, have their results."""
        page = ROOT / "docs" / "behavioural-scientists.md"
        names: dict = {}
        told = 0
        for block in blocks(page, "python")[:2]:
            exec(block.text, names)
            for call, remark in re.findall(r"^([a-z_]+\(outcomes.*?\)) *\n?\s*# ([\d., ]+)", block.text, re.MULTILINE):
                found = np.atleast_1d(eval(call, names))
                said = [float(one) for one in remark.rstrip(", ").split(", ")]
                assert found == pytest.approx(said, abs=5e-4), call
                told += 1
        assert told == 4

    def test_a_data_frame_is_padded(self):
        """The page's function fills up the rows of shorter gambles, where pandas is at hand."""
        pandas = pytest.importorskip("pandas")
        names: dict = {}
        page = blocks(ROOT / "docs" / "behavioural-scientists.md", "python")
        for block in page[:4]:
            exec(block.text, names)
        (shown,) = [one.text for one in page if one.text.startswith("judged(frame)")]
        told = [line.split()[1:] for line in shown.splitlines()[1:]]
        found = names["judged"](names["frame"])
        assert [told[1], told[0]] == [["gamble"], list(found.columns)]
        assert [line[0] for line in told[2:]] == list(found.index)
        assert np.array([line[1:] for line in told[2:]], float) == pytest.approx(found.to_numpy(), abs=1e-6)
        both = pandas.concat([names["frame"].assign(person=one) for one in "ab"])
        with pytest.raises(ValueError, match="sum to 1"):
            names["judged"](both)  # of two people at once: it says so, and adds nothing up
        assert both.groupby("person").apply(names["judged"]).loc["b"].equals(found)
        (shown,) = [one.text for one in page if "def of_wide" in one.text]
        exec(shown, names)
        wide = pandas.DataFrame({"o1": [100.0, 50.0], "p1": [0.5, 1.0], "o2": [0.0, None], "p2": [0.5, None]})
        assert [given.tolist() for given in names["of_wide"](wide, 2)] == [[[100, 0], [50, 0]], [[0.5, 0.5], [1, 0]]]
        with pytest.raises(ValueError, match="an outcome is missing"):
            names["of_wide"](wide.assign(p2=[0.5, 0.1]), 2)
        frame = pandas.DataFrame({"gamble": [1, 1, 2], "outcome": [100.0, 0.0, 50.0], "prob": [0.5, 0.5, 1.0]})
        given = [names["padded"](frame, column) for column in ("outcome", "prob")]
        worth = names["certainty_equivalent"](*given, value=names["value"], **names["median"])
        assert worth == pytest.approx([37.3788, 50.0], abs=1e-4)
        mixed = frame.iloc[[2, 1, 0]].reset_index(drop=True)
        for given in (frame, mixed):
            told = names["judged"](given)
            assert list(told.index) == [1, 2] and told["expected"].tolist() == [50.0, 50.0]
            assert told["certainty_equivalent"].tolist() == pytest.approx([37.3788, 50.0], abs=1e-4)
            assert told["utility"].tolist() == pytest.approx([24.2047, 31.2669], abs=1e-3)
        weights = names["weighted"](mixed).set_index("outcome")["weight"].to_dict()
        assert weights == pytest.approx({50.0: 1.0, 0.0: 1 - 0.42064, 100.0: 0.42064}, abs=1e-4)
        with pytest.raises(ValueError, match="no outcome"):
            names["padded"](frame.assign(outcome=[100.0, None, 50.0]), "outcome")

    def test_a_weighting_function_of_ones_own_is_used(self):
        """The certainty equivalent below it is v^-1(bent(.05) v(100)), by hand."""
        page = ROOT / "docs" / "behavioural-scientists.md"
        (block,) = [one for one in blocks(page, "python") if "def bent" in one.text]
        told = float(re.search(r"# ([\d.]+)", block.text)[1])
        weight = 0.05 + 0.4 / (2 * np.pi) * np.sin(0.1 * np.pi)
        assert told == pytest.approx((weight * 100**0.88) ** (1 / 0.88), abs=5e-4)


class TestCommands:
    """Commands of the pages."""

    @staticmethod
    def of(first: str) -> list[list[str]]:
        """Return the words of all commands of the pages that begin so, from there on."""
        found = []
        for page in GUIDES:
            for _, line in commands(page):
                words = shlex.split(line)
                if first in words:
                    found.append([name(page), *words[words.index(first) + 1 :]])
        return found

    def test_options_are_those_of_the_command_line(self, capsys):
        """Every command of humanline on the pages exists, and so do its options."""
        used: dict[str, set[str]] = {}
        for _, command, *words in self.of("humanline"):
            options = {word.split("=")[0] for word in words if word.startswith("--")}
            used.setdefault(command, set()).update(options)
        assert len(used) >= 8
        for command, options in used.items():
            with pytest.raises(SystemExit) as left:
                main([command, "--help"])
            said = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
            assert left.value.code == 0 and options <= said, (command, options - said)

    def test_settings_on_the_command_line_are_settings(self):
        """Every section.key=value is a key of the schema."""
        properties = json.loads((ROOT / "humanline" / "recipes" / "schema.json").read_text(encoding="utf-8"))
        for page, *words in self.of("humanline"):
            for word in words if words[0] != "fit" else ():  # its names are parameters: tests/fit/test_command.py
                if re.match(r"[a-z_]+(\.[a-z_]+)*=", word):
                    assert setting(properties, word.split("=")[0]) is not None, (page, word)

    def test_targets_and_extras_are_there(self):
        """Every make target is one of the Makefile, and every extra one of pyproject."""
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        texts_of = [page.read_text(encoding="utf-8") for page in GUIDES]
        targets = {target for _, target, *_ in self.of("make")} | set(re.findall(r"`make (\w+)`", "".join(texts_of)))
        assert {"demo", "test", "docs"} <= targets
        assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets), targets
        extras = set(re.findall(r"(?:'\.|humanline)\[([\w,-]+)\]'", "".join(texts_of)))
        known = PYPROJECT["project"]["optional-dependencies"]
        assert extras and {one for extra in extras for one in extra.split(",")} <= known.keys()

    def test_every_program_is_known(self):
        """No page has a command of a program that this module does not look at."""
        known = {"humanline", "make", "pip", "python", "srun", "torchrun", "[", "export", "vllm", "lighteval"}
        for page in GUIDES:
            for line, command in commands(page):
                assert shlex.split(command)[0] in known, (name(page), line, command)


def setting(schema: dict, place: str, kind: str = "") -> dict | None:
    """Return a field of the schema by its place, such as training.steps.

    Where a section is one of several kinds the field is that of this kind, if it is among them, and else of the first
    that has it.
    """

    def sections(field: dict) -> list[dict]:
        options = [*field.get("oneOf", ()), *field.get("anyOf", ()), field]
        names = [one["$ref"].removeprefix("#/$defs/") for one in options if "$ref" in one]
        return [schema["$defs"][name] for name in sorted(names, key=lambda name: name != kind)]

    here, field = [schema], None
    for key in place.split("."):
        field = next((one["properties"][key] for one in here if key in one["properties"]), None)
        if field is None:
            return None
        here = sections(field)
    return field


class TestTrl:
    """The tables of the page for those who come from TRL."""

    TABLES = settings_tables(TRL)

    @pytest.mark.parametrize("table", TABLES)
    def test_our_settings_and_defaults_are_ours(self, table):
        """Each of our settings exists; its default is the one in the row, or it has none that is a single value."""
        schema = json.loads((ROOT / "humanline" / "recipes" / "schema.json").read_text(encoding="utf-8"))
        for _, _, here, default, *_ in self.TABLES[table]:
            places = re.findall(r"`([a-z_.]+)`", here)
            for place in places:
                if place == "objective.kind":  # it has no default, and is in every kind of objective
                    continue
                field = setting(schema, place, table[:-6].capitalize() + "Objective")
                assert field is not None, place
                ours = field.get("default")
                told = default.strip("`")
                assert str(ours) == told if told else ours in (None, []) or isinstance(ours, dict), place
            assert places or not default

    @pytest.mark.parametrize("kind", ["DPOConfig", "KTOConfig", "GRPOConfig"])
    def test_their_defaults_are_theirs(self, kind):
        """Where TRL is installed, the page's defaults are its own, read from its source."""
        found = importlib.util.find_spec("trl")
        if found is None or not found.submodule_search_locations:
            pytest.skip("TRL is not here (the extra bench has it)")
        folder = Path(next(iter(found.submodule_search_locations)))
        source = (folder / "trainer" / f"{kind[:-6].lower()}_config.py").read_text(encoding="utf-8")
        (defined,) = [one for one in ast.parse(source).body if isinstance(one, ast.ClassDef) and one.name == kind]
        defaults = {}
        for node in defined.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
                given = {one.arg: one.value for one in node.value.keywords}
                value = given.get("default") or given.get("default_factory")
                value = value.body if isinstance(value, ast.Lambda) else value
                defaults[node.target.id] = ast.literal_eval(value)
        assert len(self.TABLES[kind]) >= 5
        for field, default, *_ in self.TABLES[kind]:
            assert ast.literal_eval(default.strip("`")) == defaults[field.strip("`")], field

    @pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "gemma2"])
    def test_the_adapter_of_the_page_is_pefts_own(self, kind):
        """What stands for LoraConfig(r=16) has its scale, dropout and layers, as peft has them for these models."""
        from peft import LoraConfig
        from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as TARGETS

        ((given, _, _, _, told),) = [row for row in self.TABLES["TRL and transformers"] if "LoraConfig" in row[0]]
        theirs = eval(re.search(r"LoraConfig\(.*?\)", given)[0], {"LoraConfig": LoraConfig})
        ours = AdapterConfig.model_validate(yaml.safe_load(re.search(r"`(adapter: .*?)`", told)[1])["adapter"])
        assert (ours.rank, ours.alpha, ours.dropout) == (theirs.r, theirs.lora_alpha, theirs.lora_dropout)
        assert theirs.target_modules is None and list(ours.targets) == TARGETS[kind]
        assert AdapterConfig().alpha == float(re.search(r"`alpha` is (\d+)", told)[1]) != theirs.lora_alpha


class TestReference:
    """Pages that are made from the code, or hold it to them."""

    MODULES = ("humanline.theory", "humanline.fit", "humanline.objectives", "humanline.stats", "humanline.plots")
    #: What these say is public is shown where it is defined, as reading them is to import no more than is asked for.
    ELSEWHERE = ("humanline.train", "humanline.integrations.trl", "humanline.integrations.verl")

    @staticmethod
    def identifiers() -> list[str]:
        """Return what the pages of the API show."""
        pages = sorted((ROOT / "docs" / "api").glob("*.md"))
        return [one for page in pages for one in re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.MULTILINE)]

    @pytest.mark.parametrize("module", MODULES)
    def test_every_public_name_has_its_place(self, module):
        """All that a package says is public is on a page, once."""
        shown = self.identifiers()
        public = [f"{module}.{one}" for one in importlib.import_module(module).__all__]
        assert [one for one in public if shown.count(one) != 1] == []

    @pytest.mark.parametrize("module", ELSEWHERE)
    def test_what_is_public_elsewhere_has_its_place_too(self, module):
        """Public names that come from other modules are on a page, by one of their names, once."""
        shown = [self.found(one) for one in self.identifiers()]
        package = importlib.import_module(module)
        assert [one for one in package.__all__ if sum(getattr(package, one) is it for it in shown) != 1] == []

    @staticmethod
    def found(identifier: str) -> object:
        module, _, attribute = identifier.rpartition(".")
        return getattr(importlib.import_module(module), attribute)

    def test_all_that_is_shown_is_there_and_documented(self):
        """No page shows what does not exist, or has no docstring."""
        for identifier in self.identifiers():
            assert identifier.rpartition(".")[2].isupper() or self.found(identifier).__doc__, identifier

    def test_the_configuration_page_is_current(self):
        """docs/configuration.md is what its script makes of the schema."""
        made = runpy.run_path(str(ROOT / "scripts" / "make_configuration_page.py"))
        assert made["page"]() == made["PAGE"].read_text(encoding="utf-8"), "run scripts/make_configuration_page.py"

    def test_every_error_message_is_one_of_the_source(self):
        """What docs/errors.md shows is said by the code, with gaps where something is put in."""
        page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
        said = list(texts(ROOT / "humanline"))
        messages = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
        assert len(messages) >= 20
        assert [one for one in messages if not is_said(one, said)] == []
        assert not is_said("this is … nowhere said", said)

    def test_the_letters_are_those_of_their_script(self, tmp_path):
        """examples/letters has the rows that its script makes."""
        folder = ROOT / "examples" / "letters"
        rows = runpy.run_path(str(folder / "make.py"))["rows"]
        for file, count, seed in (("pairs.jsonl", 160, 0), ("held-out.jsonl", 40, 1)):
            lines = (folder / file).read_text(encoding="utf-8").splitlines()
            assert [json.loads(line) for line in lines] == rows(count, seed)


class TestSite:
    """The site that `make docs` builds."""

    @staticmethod
    def listed(entries: list) -> list[str]:
        """Return the pages of the navigation."""
        found: list[str] = []
        for entry in entries:
            for value in entry.values():
                found += TestSite.listed(value) if isinstance(value, list) else [value]
        return found

    def test_every_page_is_in_the_navigation(self):
        """Each page of docs/ and of the study of distances is in the navigation, once, and each entry is a page."""
        entries = self.listed(SITE["nav"])
        assert len(entries) == len(set(entries)) and all((ROOT / entry).is_file() for entry in entries)
        pages = {name(page) for page in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "studies/frontier").glob("*.md")]}
        assert pages <= set(entries), f"add to nav in zensical.toml: {sorted(pages - set(entries))}"

    def test_the_card_of_a_saved_model_is_no_page(self):
        """Start models lie beside their runs, a card with each; a folder's README is a page."""
        tracked = runpy.run_path(str(ROOT / "scripts" / "build_docs.py"))["tracked"]()
        cards = {name(file.with_name("README.md")) for file in (ROOT / "studies").rglob("manifest.json")}
        assert cards and not cards & set(tracked)
        assert {"README.md", "studies/frontier/README.md"} <= set(tracked)

    def test_a_warning_ends_the_build(self):
        """What griffe, mkdocstrings and Zensical say of a fault is taken for one, and a build without any is not."""
        warnings = runpy.run_path(str(ROOT / "scripts" / "build_docs.py"))["warnings"]
        sound = "Build started\nNo issues found\nBuild finished in 4.55s\n"
        assert warnings(sound) == []
        for line in (
            "griffe: pkg/__init__.py:10: Parameter 'zz' does not appear in the function signature",
            "\x1b[33mWarning:\x1b[0m page does not exist",
            "mkdocstrings: pkg.nope could not be found",
        ):
            assert len(warnings(sound + line)) == 1

    def test_the_citation_names_paper_and_version(self):
        """CITATION.cff is YAML with the version of the package and the paper as what to cite."""
        from humanline import __version__

        cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
        assert cited["version"] == __version__ and cited["cff-version"] == "1.2.0"
        assert cited["preferred-citation"]["url"] == "https://arxiv.org/abs/2509.24207"
        changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        assert f"## {__version__}" in changes
