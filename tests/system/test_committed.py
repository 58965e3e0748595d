"""Files that scripts make: written, or compared with what is committed."""

from __future__ import annotations

import pytest

from humanline.system.committed import leave, options


def test_a_file_is_written_or_compared(tmp_path, capsys):
    """To check writes nothing, and fails where the file differs or is not there."""
    path = tmp_path / "page.md"
    assert leave(path, "one", check=True) == 1 and not path.exists()
    assert leave(path, "one", check=False) == 0 and path.read_text() == "one"
    assert (leave(path, "one", check=True), leave(path, "two", check=True)) == (0, 1)
    assert path.read_text() == "one" and "differs" in capsys.readouterr().out


def test_a_mistyped_check_writes_nothing():
    """An argument that no script knows is an error, and not a reason to write."""
    assert options("x").parse_args(["--check"]).check and not options("x").parse_args([]).check
    with pytest.raises(SystemExit):
        options("x").parse_args(["--chek"])
