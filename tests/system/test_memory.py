"""How much memory is left: by the machine and by its group, whatever is the less; unknown is none."""

from __future__ import annotations

import pytest

from humanline.system import memory
from humanline.system.memory import available, host_memory, room_for

GIB = 2.0**30


def given(monkeypatch, tmp_path, total, left, group=None):
    """Let the machine have so many GiB in all and left; and its group a limit, what it uses, and files of that."""
    found = {"MemTotal": total * GIB, "MemAvailable": left * GIB}
    monkeypatch.setattr(memory, "in_proc", lambda file, name: found[name] if total else None)
    paths = [str(tmp_path / name) for name in ("max", "current", "stat")]
    if group is not None:
        limit, used, files = group
        (tmp_path / "max").write_text(limit if isinstance(limit, str) else str(int(limit * GIB)))
        (tmp_path / "current").write_text(str(int(used * GIB)))
        (tmp_path / "stat").write_text(f"anon 5\ninactive_file {int(files * GIB)}\n")
    monkeypatch.setattr(memory, "_LIMITS", (paths[0], "/absent"))
    monkeypatch.setattr(memory, "_USED", ((paths[1], paths[2], "inactive_file"), ("/absent", "/absent", "x")))


@pytest.mark.parametrize(
    "total,left,group,whole,free",
    [
        (100, 60, None, 100, 60),
        (100, 60, ("max\n", 50, 0), 100, 60),
        (100, 60, (50, 30, 10), 50, 30),
        (100, 20, (50, 30, 10), 50, 20),
        (0, 0, None, float("inf"), float("inf")),
    ],
)
def test_what_is_left(monkeypatch, tmp_path, total, left, group, whole, free):
    """The smaller one of the machine's and the group's; files that can be let go do not count as used."""
    given(monkeypatch, tmp_path, total, left, group)
    assert (host_memory() / GIB, available() / GIB) == (whole, free)


def test_there_is_room_if_a_tenth_of_all_stays_free(monkeypatch, tmp_path):
    """For every process of the host; where nobody can tell, there is none."""
    given(monkeypatch, tmp_path, 100, 60)
    assert room_for(int(50 * GIB), 1) and room_for(int(25 * GIB), 2)
    assert not room_for(int(51 * GIB), 1) and not room_for(int(26 * GIB), 2)
    given(monkeypatch, tmp_path, 0, 0)
    assert not room_for(1, 1)


def test_this_machine_has_memory():
    """What is left is above nothing, and not more than there is."""
    assert 0 < available() <= host_memory()
