"""A page in a browser without network: it draws, says nothing on its console, and no text of a model becomes markup."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from humanline.report.write import write_report
from tests.report.support import ROWS, answer_row, look, make_answers, make_run, settings

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = (
    "</pre><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">\u202e" + "W" * 3000
)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
@pytest.mark.parametrize("window", ["1280,2000", "390,2000"])
def test_a_page_opens_without_a_word_on_the_console(window, tmp_path):
    run = make_run(tmp_path / "run", settings(model=HOSTILE), [*ROWS, look(9, 0.6)])
    answers = make_answers(tmp_path / "a.jsonl", answer_row("1", HOSTILE, HOSTILE, [0.5]))
    page, *_ = write_report([str(run), str(answers)], str(tmp_path / "out" / "report.html"))
    told = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--window-size={window}",
    ]
    told += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}"]
    shot = tmp_path / "page.png"
    seen = subprocess.run(
        [*told, "--dump-dom", f"--screenshot={shot}", page.as_uri()], capture_output=True, text=True, timeout=240
    )
    assert seen.returncode == 0 and shot.stat().st_size > 10_000, seen.stderr
    own = [line for line in seen.stderr.splitlines() if "CONSOLE" in line and "source: chrome://" not in line]
    assert own == []  # what the browser's own first page says is no word of ours
    assert "<title>humanline report</title>" in seen.stdout
    assert not re.search(r"<(script|img)\b", seen.stdout) and "&lt;script&gt;" in seen.stdout
    assert "\u202e" not in seen.stdout
