# SPDX-License-Identifier: Apache-2.0
"""The catalog: measured step times of jobs, in an SQLite file. ``docs/formats/catalog.md`` describes it.

The key of a value is what it depends on: machine, data set, model, batch and the loader's settings; the wait in company
depends on both jobs. The catalog also has the files and folders that were evicted for a measurement, so that a run can
check for a cold start. Several programs may use one file: each change is one transaction, and a locked file is an error
after a timeout. Values that a run has contradicted are stale until they are measured again.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple
from types import TracebackType
from typing import Any
from urllib.parse import quote

from foresee.errors import CatalogBusy, CatalogInvalid, ConfigError, NotMeasured
from foresee.stagger.catalog_entry import Entry, Key, UsedValue, is_time
from foresee.stagger.model import FIGURES, Figure, JobTimes

__all__ = ["STALE_ABOVE", "VERSION", "Catalog"]

VERSION = 2
#: It has no places. The first write upgrades it.
_PREVIOUS_VERSION = 1
#: "FSJC", in the header of the file: SQLite's ``application_id``.
_APPLICATION = 0x46534A43
_MAGIC = b"SQLite format 3\0"
#: A makespan that differs by more than this share from its prediction makes the values behind it stale.
STALE_ABOVE = 0.10
#: Values of one job alone.
_OWN_FIGURES: tuple[Figure, ...] = ("compute", "wait", "wait_cached")

_SCHEMA = """
CREATE TABLE job (
    id INTEGER PRIMARY KEY,
    machine TEXT NOT NULL,
    data TEXT NOT NULL,
    model TEXT NOT NULL,
    batch INTEGER NOT NULL CHECK (batch >= 1),
    loader TEXT NOT NULL,
    UNIQUE (machine, data, model, batch, loader)
);
CREATE TABLE figure (
    job INTEGER NOT NULL REFERENCES job (id),
    beside INTEGER REFERENCES job (id),
    name TEXT NOT NULL CHECK (name IN ('compute', 'wait', 'wait_cached', 'wait_conc')),
    seconds REAL NOT NULL CHECK (seconds >= 0),
    sd REAL CHECK (sd >= 0),
    steps INTEGER CHECK (steps >= 1),
    date TEXT NOT NULL,
    program TEXT NOT NULL,
    stale TEXT,
    CHECK ((name = 'wait_conc') = (beside IS NOT NULL))
);
CREATE UNIQUE INDEX once ON figure (job, name, ifnull(beside, 0));
CREATE TABLE place (
    machine TEXT NOT NULL,
    data TEXT NOT NULL,
    path TEXT NOT NULL,
    UNIQUE (machine, data, path)
);
"""
_PLACE = _SCHEMA[_SCHEMA.index("CREATE TABLE place") :]


class Catalog:
    """An open catalog; a context manager. One object belongs to one thread."""

    def __init__(self, path: str, database: sqlite3.Connection) -> None:
        self._path = path
        self._db = database

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, write: bool = False, wait: float = 5.0) -> Catalog:
        """Open the catalog at ``path``.

        Args:
            path: the file.
            write: whether it may be changed; then a missing or empty file becomes a catalog.
            wait: seconds to wait for a lock, 0 or more.

        Raises:
            CatalogInvalid: no catalog, of another version, or damaged.
            CatalogBusy: locked by another program for longer than ``wait``.
            OSError: the file cannot be opened.
        """
        shown = os.fspath(path)
        try:
            with open(shown, "ab+" if write else "rb") as file:  # its errors are clearer than SQLite's
                file.seek(0)
                head = file.read(len(_MAGIC))
        except FileNotFoundError:
            if write:
                raise
            raise FileNotFoundError(
                f"{shown}: there is no catalog; `foresee stagger calibrate --catalog {shown}` measures jobs into it"
            ) from None
        if head != _MAGIC and (head or not write):
            raise CatalogInvalid(f"{shown}: no SQLite file, so this is no catalog of jobs")
        uri = f"file:{quote(os.path.abspath(shown))}?mode={'rw' if write else 'ro'}"
        with _convert_errors(shown):
            database = sqlite3.connect(uri, uri=True, timeout=wait, isolation_level=None)
        catalog = cls(shown, database)
        try:
            catalog._initialize(write)
        except BaseException:
            catalog.close()
            raise
        return catalog

    def _initialize(self, write: bool) -> None:
        with _convert_errors(self._path):
            self._db.execute("PRAGMA foreign_keys = ON")
            if write:
                with self._transaction():
                    if self._number("PRAGMA schema_version") == 0:
                        self._create()
                    elif self._is(_PREVIOUS_VERSION):
                        self._db.execute(_PLACE)
                        self._db.execute(f"PRAGMA user_version = {VERSION}")
            application = self._number("PRAGMA application_id")
            version = self._number("PRAGMA user_version")
        if application != _APPLICATION:
            raise CatalogInvalid(f"{self._path}: an SQLite file of another program, no catalog of jobs")
        if version not in {_PREVIOUS_VERSION, VERSION}:
            raise CatalogInvalid(
                f"{self._path}: version {version}; this program reads versions {_PREVIOUS_VERSION} and {VERSION} "
                "of a catalog: measure anew into another file, or install the release that wrote it"
            )

    def _is(self, version: int) -> bool:
        """Whether it is a catalog of ``version``."""
        is_catalog = self._number("PRAGMA application_id") == _APPLICATION
        return is_catalog and self._number("PRAGMA user_version") == version

    def _create(self) -> None:
        for statement in _SCHEMA.split(";\n"):
            if statement.strip():
                self._db.execute(statement)
        self._db.execute(f"PRAGMA application_id = {_APPLICATION}")
        self._db.execute(f"PRAGMA user_version = {VERSION}")

    def keys(self) -> list[Key]:
        """Return the keys of all jobs, sorted."""
        rows = self._rows("SELECT machine, data, model, batch, loader FROM job ORDER BY 1, 2, 3, 4, 5")
        return [self._key(row) for row in rows]

    def get(self, key: Key, name: Figure, *, beside: Key | None = None) -> Entry | None:
        """Return a value; None if it is missing.

        Args:
            key: the job.
            name: which value.
            beside: the other job of ``wait_conc``; None for other values.

        Raises:
            ConfigError: an unknown name, or one that does not fit ``beside``.
            CatalogInvalid, CatalogBusy: as :meth:`open`.
        """
        _check(name, beside)
        rows = self._rows(
            "SELECT seconds, sd, steps, date, program, stale FROM figure WHERE job = ? AND name = ? AND beside IS ?",
            self._id(key),
            name,
            None if beside is None else self._id(beside),
        )
        if not rows or (beside is not None and self._id(beside) is None):
            return None
        return self._entry(rows[0], f"{name} of {key}")

    def put(self, key: Key, name: Figure, entry: Entry, *, beside: Key | None = None) -> None:
        """Store or replace a value.

        Arguments and errors are those of :meth:`get`.
        """
        _check(name, beside)
        with self._transaction():
            job = self._insert_job(key)
            company = None if beside is None else self._insert_job(beside)
            self._db.execute(
                "DELETE FROM figure WHERE job = ? AND name = ? AND beside IS ?", (job, name, company)
            )
            values = (
                entry.seconds,
                entry.sd,
                entry.steps,
                entry.date.isoformat(),
                entry.program,
                entry.stale,
            )
            self._db.execute(
                "INSERT INTO figure (job, beside, name, seconds, sd, steps, date, program, stale) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (job, company, name, *values),
            )

    def missing(self, key: Key, *, beside: Key | None = None, measured: bool = False) -> tuple[Figure, ...]:
        """Return the missing and stale values of a job, with ``beside`` also of the pair.

        ``measured``: whether derived values count as missing.
        """
        found = {name: self.get(key, name) for name in _OWN_FIGURES}
        if beside is not None:
            found["wait_conc"] = self.get(key, "wait_conc", beside=beside)
        return tuple(
            name
            for name, entry in found.items()
            if entry is None or entry.stale is not None or (measured and entry.steps is None)
        )

    def mark_stale(self, key: Key, reason: str, *, beside: Key | None = None) -> int:
        """Mark a job's values as stale, or with ``beside`` the pair's alone; return their number.

        A stale value keeps its first reason.

        Raises:
            ConfigError: ``reason`` is empty.
            CatalogInvalid, CatalogBusy: as :meth:`open`.
        """
        names = _OWN_FIGURES if beside is None else ("wait_conc",)
        return self._mark([UsedValue(key, name, beside) for name in names], reason)

    def _mark(self, used: Iterable[UsedValue], reason: str) -> int:
        if not reason:
            raise ConfigError("reason is empty; name the observation that contradicts the values")
        marked = 0
        with self._transaction():
            for one in used:
                job, company = self._id(one.key), None if one.beside is None else self._id(one.beside)
                if job is None or (one.beside is not None and company is None):
                    continue
                marked += self._db.execute(
                    "UPDATE figure SET stale = ? WHERE job = ? AND name = ? AND beside IS ? AND stale IS NULL",
                    (reason, job, one.name, company),
                ).rowcount
        return marked

    def judge(self, used: Iterable[UsedValue], *, predicted: float, measured: float) -> bool:
        """Compare a makespan with its prediction; mark the values behind it if it is more than 10 % off.

        Args:
            used: the values that the prediction took from this catalog.
            predicted: seconds, finite, > 0.
            measured: likewise.

        Returns:
            Whether the values are right.

        Raises:
            ConfigError: a time outside its range.
            CatalogInvalid, CatalogBusy: as :meth:`open`.
        """
        faults = [
            f"{field} is {value!r}; seconds expected, finite and above 0"
            for field, value in (("predicted", predicted), ("measured", measured))
            if not is_time(value) or value == 0
        ]
        if faults:
            raise ConfigError(faults)
        off = (predicted - measured) / measured
        if abs(off) <= STALE_ABOVE:
            return True
        self._mark(
            used, f"predicted {predicted:.6g} s for a makespan of {measured:.6g} s ({100 * off:+.1f} %)"
        )
        return False

    def places(self, machine: str, data: str) -> tuple[str, ...]:
        """Return the sorted files and folders of a data set on a machine, as measurements recorded them.

        Raises:
            CatalogInvalid, CatalogBusy: as :meth:`open`.
        """
        with _convert_errors(self._path):
            if not self._is(VERSION):
                return ()
        rows = self._rows("SELECT path FROM place WHERE machine = ? AND data = ? ORDER BY 1", machine, data)
        return tuple(str(path) for (path,) in rows)

    def put_places(self, machine: str, data: str, paths: Iterable[str]) -> None:
        """Store or replace the absolute paths of a data set on a machine.

        Raises:
            CatalogInvalid, CatalogBusy: as :meth:`open`.
        """
        rows = [(machine, data, path) for path in dict.fromkeys(paths)]
        with self._transaction():
            self._db.execute("DELETE FROM place WHERE machine = ? AND data = ?", (machine, data))
            self._db.executemany("INSERT INTO place (machine, data, path) VALUES (?, ?, ?)", rows)

    def times(
        self, key: Key, *, steps: int, epochs: int = 1, beside: Key | None = None, name: str | None = None
    ) -> JobTimes:
        """Return a job's times for predictions; ``wait_conc`` is None without ``beside``, or if missing.

        Args:
            key: the job.
            steps: steps per epoch.
            epochs: number of epochs.
            beside: the other job.
            name: the job's name; None: the model.

        Raises:
            NotMeasured: compute, wait or ``wait_cached`` is missing.
            ConfigError: steps or epochs outside their range.
            CatalogInvalid, CatalogBusy: as :meth:`open`.
        """
        found: dict[Figure, Entry] = {}
        for figure in _OWN_FIGURES:
            entry = self.get(key, figure)
            if entry is None:
                raise NotMeasured(f"{figure} of {key}", f"measure it into {self._path}")
            found[figure] = entry
        company = None if beside is None else self.get(key, "wait_conc", beside=beside)
        if company is not None:
            found["wait_conc"] = company
        return JobTimes(
            name=key.model if name is None else name,
            compute=found["compute"].seconds,
            wait=found["wait"].seconds,
            wait_cached=found["wait_cached"].seconds,
            wait_conc=None if company is None else company.seconds,
            steps=steps,
            epochs=epochs,
            estimated=frozenset(figure for figure, entry in found.items() if entry.steps is None),
        )

    def stale(self, key: Key, *, beside: Key | None = None) -> Mapping[Figure, str]:
        """Return the stale values of a job with their reasons, with ``beside`` also of the pair."""
        marked: dict[Figure, str] = {}
        for figure in FIGURES:
            if figure == "wait_conc" and beside is None:
                continue
            entry = self.get(key, figure, beside=beside if figure == "wait_conc" else None)
            if entry is not None and entry.stale is not None:
                marked[figure] = entry.stale
        return marked

    def facts(self) -> dict[str, Any]:
        """Return the catalog in plain values."""
        jobs: list[dict[str, Any]] = []
        keys = self.keys()
        for key in keys:
            figures: list[dict[str, Any]] = []
            for beside in (None, *keys):
                for name in _OWN_FIGURES if beside is None else ("wait_conc",):
                    entry = self.get(key, name, beside=beside)
                    if entry is not None:
                        figures.append(
                            {
                                "name": name,
                                "beside": None if beside is None else vars(beside),
                                **vars(entry),
                                "date": entry.date.isoformat(),
                            }
                        )
            jobs.append({**vars(key), "figures": figures})
        at = sorted({(key.machine, key.data) for key in keys})
        places = [
            {"machine": machine, "data": data, "path": path}
            for machine, data in at
            for path in self.places(machine, data)
        ]
        return {"version": VERSION, "jobs": jobs, "places": places}

    def close(self) -> None:
        """Close the file; it may be called again."""
        self._db.close()

    def __enter__(self) -> Catalog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with _convert_errors(self._path):
            return self._db.execute(query, values).fetchall()

    def _number(self, query: str) -> int:
        number: int = self._db.execute(query).fetchone()[0]
        return number

    def _id(self, key: Key) -> int | None:
        query = "SELECT id FROM job WHERE machine = ? AND data = ? AND model = ? AND batch = ? AND loader = ?"
        rows = self._rows(query, *astuple(key))
        return rows[0][0] if rows else None

    def _insert_job(self, key: Key) -> int:
        self._db.execute(
            "INSERT OR IGNORE INTO job (machine, data, model, batch, loader) VALUES (?, ?, ?, ?, ?)",
            astuple(key),
        )
        made = self._id(key)
        assert made is not None
        return made

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run one transaction; it takes the lock first, so that it never fails half-way for lack of it."""
        with _convert_errors(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _key(self, row: tuple[Any, ...]) -> Key:
        machine, data, model, batch, loader = row
        try:
            return Key(machine=machine, data=data, model=model, batch=batch, loader=loader)
        except ConfigError as error:
            raise CatalogInvalid(f"{self._path}: damaged: job {row!r}: {'; '.join(error.faults)}") from None

    def _entry(self, row: tuple[Any, ...], of: str) -> Entry:
        seconds, sd, steps, date, program, stale = row
        try:
            day = dt.date.fromisoformat(date)
            return Entry(seconds=seconds, sd=sd, steps=steps, date=day, program=program, stale=stale)
        except (ConfigError, TypeError, ValueError) as error:
            raise CatalogInvalid(f"{self._path}: damaged: {of}: {error}") from None


@contextlib.contextmanager
def _convert_errors(path: str) -> Iterator[None]:
    """Convert errors of SQLite to Foresee's."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise CatalogBusy(
                f"{path}: locked by another program; wait until it has ended, or end it"
            ) from error
        raise CatalogInvalid(f"{path}: {error}; this is no catalog, or it cannot be used here") from error
    except sqlite3.DatabaseError as error:
        raise CatalogInvalid(
            f"{path}: damaged ({error}); restore it, or remove it and measure again"
        ) from error


def _check(name: str, beside: Key | None) -> None:
    if name not in FIGURES:
        raise ConfigError(f"figure is {name!r}; one of {', '.join(FIGURES)} expected")
    if (name == "wait_conc") != (beside is not None):
        raise ConfigError(
            "beside is missing; wait_conc depends on the other job"
            if beside is None
            else f"beside is {beside}; {name} depends on no other job"
        )
