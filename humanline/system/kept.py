"""Results kept as they come, in a SQLite file, so that what is stopped goes on where it was."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path


class KeptResults:
    """Texts under keys, each committed as soon as it is given.

    Parameters
    ----------
    path : Path
        The file; created if it does not exist.

    Raises
    ------
    OSError
        From every method, if the file is not such a one, or cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, str]:
        """Return the results by their keys."""
        with self._named(), contextlib.closing(sqlite3.connect(self.path)) as database:
            with database:
                database.execute("CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, run TEXT, result TEXT)")
            return dict(database.execute("SELECT key, result FROM results"))

    def keep(self, key: str, run: str, result: str) -> None:
        """Keep a result under its key, and in words what it is of; a key that is there already is left as it is."""
        self.keep_all([(key, run, result)])

    def keep_all(self, results: Iterable[tuple[str, str, str]]) -> None:
        """Keep many at once, each as `keep` does: all of them or, where that fails, none."""
        with self._named(), contextlib.closing(sqlite3.connect(self.path)) as database, database:
            database.executemany("INSERT OR IGNORE INTO results VALUES (?, ?, ?)", results)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Turn SQLite's errors into an OSError that names the file."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise OSError(f"{self.path}: {error}; what it keeps is not lost, the same study goes on") from error
        except sqlite3.DatabaseError as error:
            message = f"{self.path}: {error}; results of a study would be kept there, so take another folder"
            raise OSError(message) from error
