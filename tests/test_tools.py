"""The script that tries the newest releases of other tools: what it takes for a break, and its table."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys

import pytest
import yaml

from tests.conftest import ROOT

SCRIPT = ROOT / "scripts" / "tools.py"


@pytest.fixture
def script():
    """Return the script's names, as `import` would give them."""
    return runpy.run_path(str(SCRIPT))


def report(folder, *cases: str):
    """Write a report as pytest does."""
    path = folder / "report.xml"
    path.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>", encoding="utf-8")
    return path


PASSED = '<testcase classname="tests.a" name="test_one"/>'
FAILED = (
    '<testcase classname="tests.a" name="test_two"><failure message="assert 2 &lt; 1&#10;more">E</failure></testcase>'
)
TRACED = FAILED.replace(
    "assert 2 &lt; 1&#10;more", "AssertionError: Traceback:&#10;  a line&#10;KeyError: lost&#10;assert 1"
)
SKIPPED = '<testcase classname="tests.a" name="test_three"><skipped message="verl is not installed here"/></testcase>'
WAITS = '<testcase classname="tests.a" name="test_five"><skipped message="no CUDA device"/></testcase>'
ERROR = '<testcase classname="tests.a" name="test_four"><error message="no such function">E</error></testcase>'


class TestVerdict:
    """What a report of pytest is taken for."""

    def test_only_passed_tests_are_a_success(self, script, tmp_path):
        """The sentence counts them."""
        assert script["verdict"](report(tmp_path, PASSED, PASSED), 0, "") == "2 tests pass"

    def test_what_wants_a_gpu_is_counted_and_no_break(self, script, tmp_path):
        """It is skipped for the reason that tests/conftest.py gives; alone it shows nothing."""
        assert script["verdict"](report(tmp_path, PASSED, WAITS), 0, "") == "1 tests pass, 1 want a GPU"
        assert f'"{script["NO_GPU"]}"' in (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
        with pytest.raises(script["Broken"], match="0 tests ran"):
            script["verdict"](report(tmp_path, WAITS), 0, "")

    @pytest.mark.parametrize(
        ("cases", "code", "said"),
        [
            ((PASSED, FAILED), 1, r"breaks tests\.a\.test_two: assert 2 < 1$"),
            ((PASSED, TRACED), 1, r"test_two: KeyError: lost$"),
            ((PASSED, ERROR), 1, r"breaks tests\.a\.test_four: no such function$"),
            ((PASSED, SKIPPED), 0, r"leaves out tests\.a\.test_three: verl is not installed here$"),
            ((), 5, "0 tests ran and pytest ended with 5"),
            ((), 0, "0 tests ran"),
            ((PASSED,), 3, "1 tests ran and pytest ended with 3: the last word"),
        ],
    )
    def test_everything_else_is_a_break(self, script, tmp_path, cases, code, said):
        """A failure, an error, a test left out, no test at all, and an end that the report does not explain."""
        with pytest.raises(script["Broken"], match=said):
            script["verdict"](report(tmp_path, *cases), code, "many\nthe last word")

    def test_no_report_is_a_break(self, script, tmp_path):
        """Where pytest did not even start, its last line of error is in the sentence."""
        with pytest.raises(script["Broken"], match="no report: ImportError: no module named verl"):
            script["verdict"](tmp_path / "none.xml", 1, "so\nImportError: no module named verl\nand on")


class TestRuns:
    """The script as a command."""

    @staticmethod
    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, env=environment or None)

    def test_an_index_that_does_not_answer_is_a_break_and_not_silence(self, tmp_path):
        """Without an index the sentence says so, and the exit code is 1."""
        nowhere = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PATH": "", "HOME": str(tmp_path)}
        done = self.run("verl", "--in", str(tmp_path / "envs"), **nowhere)
        assert done.returncode == 1
        assert re.fullmatch(r"verl \(newest\) could not be looked up: .*\(tested: [\d.]+\)\.\n", done.stdout)

    def test_an_index_that_cannot_be_reached_is_named_as_that(self, tmp_path):
        """And not as a tool that is gone, which is what pip's last line says then."""
        closed = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1", "PIP_CONFIG_FILE": "/dev/null"}
        done = self.run("axolotl", **closed, PATH="", HOME=str(tmp_path))
        assert (done.returncode, done.stdout) == (
            1,
            "axolotl (newest) could not be looked up: the index of packages does not answer (looked at: 0.19.0).\n",
        )

    def test_an_unknown_tool_is_refused(self):
        """With those there are."""
        done = self.run("verll")
        assert done.returncode == 2 and "no such tool: verll; there are trl, verl" in done.stderr

    def test_the_table_on_the_page_is_the_scripts(self, script):
        """What `--list` prints stands in docs/inside-others.md."""
        assert script["table"]() in (ROOT / "docs" / "inside-others.md").read_text(encoding="utf-8")
        assert self.run("--list").stdout.strip() == script["table"]()

    def test_the_workflow_tries_every_tool(self, script):
        """Once a week, by the same command."""
        workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tools.yml").read_text(encoding="utf-8"))
        job = workflow["jobs"]["newest"]
        assert job["strategy"]["matrix"]["tool"] == [*script["TOOLS"], *script["THROUGH_TRL"]]
        assert job["steps"][-1]["run"].startswith("python scripts/tools.py ${{ matrix.tool }}")


@pytest.mark.parametrize(
    ("lines", "asked"),
    [
        (["torch", "trl==1.9.0"], "trl==1.9.0"),
        (["trl (<=0.24.0,>=0.18.0)"], "trl<=0.24.0,>=0.18.0"),
        (['trl==0.27.0; extra == "fsdp"'], "no trl"),
        (["trlx==1.0", "trl-tools==2"], "no trl"),
        ([], "no trl"),
    ],
)
def test_which_trl_a_package_asks_for(script, lines, asked):
    """Extras do not count, and a package whose name begins alike is another."""
    report = {"install": [{"metadata": {"name": "a", "requires_dist": lines}}]}
    assert script["trl_asked_for"](json.dumps(report)) == asked


@pytest.mark.parametrize("report", ["", "no json", "{}", '{"install": []}', '{"install": [null]}'])
def test_a_report_of_pip_that_is_another_is_a_break(script, report):
    """A pip that tells it differently is no proof that nothing is asked for."""
    with pytest.raises(script["Broken"], match="report is not understood"):
        script["trl_asked_for"](report)


@pytest.mark.parametrize(
    ("version", "lines", "works", "said"),
    [
        ("0.19.0", ["trl==1.9.0"], True, "axolotl 0.19.0 asks for trl==1.9.0, as 0.19.0 did."),
        ("0.20.0", ["trl==1.9.0"], True, "as 0.19.0 did; nobody has looked at 0.20.0, do and write it into the table."),
        (
            "0.20.0",
            ["trl==1.16.0"],
            False,
            "asks for trl==1.16.0, where 0.19.0 asked for trl==1.9.0: see what works now.",
        ),
    ],
)
def test_a_tool_that_is_looked_at(script, monkeypatch, version, lines, works, said):
    """The same TRL in the same release, in a newer one, and another TRL."""

    def pip(*words, **_):
        told = f"axolotl ({version})" if "index" in words else None
        report = {"install": [{"metadata": {"requires_dist": lines}}]}
        return subprocess.CompletedProcess(words, 0, told or json.dumps(report), "")

    monkeypatch.setitem(script["look_at"].__globals__, "run", pip)
    found, sentence = script["look_at"]("axolotl")
    assert found is works and sentence.endswith(said)


def test_a_folder_that_is_no_environment_is_left_alone(script, tmp_path):
    """An environment is made anew, but nothing else is removed for it."""
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(script["Broken"], match="is there already and is no environment"):
        script["install"](script["TOOLS"]["verl"], "1", tmp_path)
    assert (tmp_path / "kept").read_text() == "mine"
