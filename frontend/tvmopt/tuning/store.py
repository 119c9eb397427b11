"""The store: one SQLite file that keeps every finished measurement, whatever happens - for the tuner, `tvmopt logs`
and `compile`.

    kill -9       a measurement is one committed transaction; WAL needs no recovery step that could block
    two tuners    a candidate is claimed before it is measured; a claim ends with its process, or after CLAIM_SECONDS
    resume        what is in `record` is never measured again; `session` counts trials and seconds with each record
    other target  `best` and `records` take a whole Key: a record of another machine cannot be returned
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmopt.errors import TuningError
from tvmopt.tuning.record import Candidate, Key, Record, Status, Verdict, now, plain_data, record_of

FORMAT = 1
CLAIM_SECONDS = 300.0
ANOTHER = "name another file with --store, or move this one away"
"""How to mend a store that cannot be used."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS record(
    id INTEGER PRIMARY KEY, workload TEXT NOT NULL, target TEXT NOT NULL, tvm TEXT NOT NULL, family TEXT NOT NULL,
    version INTEGER NOT NULL, candidate TEXT NOT NULL, knobs TEXT NOT NULL, trace TEXT NOT NULL,
    status TEXT NOT NULL, samples TEXT NOT NULL, digest TEXT NOT NULL, note TEXT NOT NULL, shape TEXT NOT NULL,
    host TEXT NOT NULL, date TEXT NOT NULL, verdict TEXT NOT NULL DEFAULT '', session TEXT NOT NULL DEFAULT '',
    baseline REAL NOT NULL DEFAULT 0,
    UNIQUE(workload, target, tvm, family, version, candidate));
CREATE INDEX IF NOT EXISTS record_session ON record(session);
CREATE TABLE IF NOT EXISTS workload(hash TEXT PRIMARY KEY, module BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS claim(
    workload TEXT, target TEXT, tvm TEXT, family TEXT, version INTEGER, candidate TEXT, owner TEXT,
    expires REAL, PRIMARY KEY(workload, target, tvm, family, version, candidate)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS session(
    id TEXT PRIMARY KEY, model TEXT, target TEXT, seconds REAL NOT NULL DEFAULT 0, started TEXT, info TEXT);
"""

_KEY = "workload=? AND target=? AND tvm=? AND family=? AND version=?"
_COLUMNS = "workload,target,tvm,family,version,knobs,trace,status,samples,digest,note,shape,host,date,verdict,baseline"


@dataclass(frozen=True)
class Session:
    """One budget: a model tuned for a target, all its runs together.

    Attributes:
        seconds: spent so far. started: UTC, ISO 8601.
        info: what the tuner says of its tasks, as JSON (`curve.calls_text`); stores of earlier versions have none.
    """

    id: str
    model: str
    target: str
    seconds: float
    started: str
    info: str = ""


def default_path() -> Path:
    """Where the user's records are kept: `$TVMOPT_STORE`, else `~/.local/share/tvmopt/tuning.db`."""
    if "TVMOPT_STORE" in os.environ:
        return Path(os.environ["TVMOPT_STORE"])
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "tvmopt" / "tuning.db"


class Store:
    """An open store. One object a process and thread; any number of processes a file.

    Rows that are damaged are no records: they are left out, named in `warnings`, and measured again.

    Args:
        path: the file; made, with its folder, unless `must_exist`.

    Attributes:
        warnings: the damaged rows met so far.

    Raises:
        TuningError: it is not a store, is of a later format, or cannot be opened.
    """

    def __init__(self, path: Path | str | None = None, *, must_exist: bool = False) -> None:
        self.path = Path(path) if path is not None else default_path()
        if must_exist and not self.path.exists():
            raise TuningError("there is no tuning store", where=str(self.path), fix="`tvmopt tune MODEL` makes one")
        self.owner = _owner()
        self.warnings: list[str] = []
        self._damaged: set[int] = set()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=60, isolation_level=None)
            self._prepare()
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise self._error("cannot open the tuning store", error) from error

    def _prepare(self) -> None:
        for attempt in range(200):
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError:  # two processes make the file at once: this pragma does not wait
                if attempt == 199:
                    raise
                time.sleep(0.02)
        self._db.execute("PRAGMA synchronous=NORMAL")  # a killed process loses nothing; a power cut the last commits
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if found > FORMAT:
            raise sqlite3.DatabaseError(f"its format is {found}, this tvmopt reads up to {FORMAT}")
        if found < FORMAT:
            with self._transaction():
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version={FORMAT}")

    def _error(self, what: str, error: Exception, fix: str = ANOTHER) -> TuningError:
        told = "it is damaged" if isinstance(error, UnicodeDecodeError) else str(error)  # SQLite quotes what it found
        return TuningError(f"{what}: {told}", where=str(self.path), fix=fix)

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, holding the write lock from the start: no upgrade that could fail half-way.

        Raises:
            TuningError: it cannot be written, as when the disk is full; what was there stays.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite has rolled back by itself when the disk is full
                    self._db.execute("ROLLBACK")
                raise
        except (sqlite3.Error, UnicodeDecodeError) as error:
            fix = "free some space or mend the permissions, then start again: what was measured is kept"
            raise self._error("cannot write the tuning store", error, fix) from error

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """What is read may have been damaged on its disk: its pages, and the JSON and the archives in its rows.

        Raises:
            TuningError: it was.
        """
        try:
            yield
        except (sqlite3.Error, ValueError, TypeError, KeyError, AttributeError, zlib.error) as error:
            raise self._error("cannot read the tuning store", error) from error

    # -- measurements ------------------------------------------------------------------------------

    def add(self, record: Record, session: str = "", seconds: float = 0.0) -> bool:
        """Keep a finished measurement; False if the point had one already (which stays).

        Args:
            session: the session whose budget it counts on. seconds: what it cost, added to the session's
                time.
        """
        with self._transaction():
            added = self._insert(record, session)
            if session and seconds:
                self._db.execute("UPDATE session SET seconds=seconds+? WHERE id=?", (seconds, session))
            self._db.execute(f"DELETE FROM claim WHERE {_KEY} AND candidate=?", _id(record))
        return added

    def merge(self, records: Iterable[Record]) -> int:
        """Add records made elsewhere; of two on one point the one with a verdict stays. How many changed."""
        changed = 0
        with self._transaction():
            for record in records:
                if self._insert(record, ""):
                    changed += 1
                elif record.verdict is not None:
                    cursor = self._db.execute(
                        f"UPDATE record SET verdict=? WHERE verdict='' AND status='ok' AND {_KEY} AND candidate=?",
                        (_verdict_text(record.verdict), *_id(record)),
                    )
                    changed += cursor.rowcount
        return changed

    def _insert(self, record: Record, session: str) -> bool:
        c = record.candidate
        cursor = self._db.execute(
            f"INSERT OR IGNORE INTO record({_COLUMNS},candidate,session) VALUES({','.join('?' * 18)})",
            (*_key(record.key), json.dumps(c.knobs, sort_keys=True), c.trace, record.status,
             json.dumps([float(f"{s:.6g}") for s in record.samples]), record.digest, record.note[:500],
             record.shape, record.host, record.date or now(), _verdict_text(record.verdict), record.baseline,
             c.id, session),
        )  # fmt: skip
        return cursor.rowcount == 1

    def judge(self, key: Key, candidate: Candidate, verdict: Verdict) -> None:
        """Attach the outcome of a final to a measured candidate."""
        with self._transaction():
            self._db.execute(
                f"UPDATE record SET verdict=? WHERE {_KEY} AND candidate=?",
                (_verdict_text(verdict), *_key(key), candidate.id),
            )

    def restate(self, key: Key, candidate: Candidate, status: Status, note: str) -> None:
        """A candidate measured again is not what its record says: the record gets this status and loses its verdict."""
        with self._transaction():
            self._db.execute(
                f"UPDATE record SET status=?, note=?, verdict='' WHERE {_KEY} AND candidate=?",
                (status, note[:500], *_key(key), candidate.id),
            )

    def records(
        self, key: Key | None = None, *, target: str = "", won: bool = False, session: str = ""
    ) -> list[Record]:
        """Records in the order they were finished: of one key, of one target, of one session, or all."""
        where, values = ["1"], list[Any]()
        if key is not None:
            where.append(_KEY)
            values += _key(key)
        if target:
            where.append("target=?")
            values.append(target)
        if session:
            where.append("session=?")
            values.append(session)
        if won:
            where.append("verdict LIKE '%\"won\": true%'")
        with self._reading():
            rows = self._db.execute(f"SELECT id,{_COLUMNS} FROM record WHERE {' AND '.join(where)} ORDER BY id", values)
            found = []
            for number, *row in rows:
                try:
                    found.append(_record(row))
                except (ValueError, TypeError) as error:
                    if number not in self._damaged:
                        self.warnings.append(f"a tuning record is not used: {self.path}, row {number}: {error}")
                    self._damaged.add(number)
            return found

    def best(self, key: Key) -> Record | None:
        """The record that won its final by most; None if none did."""
        winners = [r for r in self.records(key, won=True) if r.won]
        return min(winners, key=lambda r: (r.verdict.ratio if r.verdict else 1.0, r.candidate.id), default=None)

    def remove(self, keep: Iterable[Record]) -> int:
        """Keep only these records; how many went. Workloads that no record needs go too."""
        kept = {_id(r) for r in keep}
        with self._transaction():
            rows = self._db.execute("SELECT id,workload,target,tvm,family,version,candidate FROM record").fetchall()
            gone = [(row[0],) for row in rows if tuple(row[1:]) not in kept]
            self._db.executemany("DELETE FROM record WHERE id=?", gone)
            self._db.execute("DELETE FROM workload WHERE hash NOT IN (SELECT workload FROM record)")
        return len(gone)

    # -- claims ------------------------------------------------------------------------------------

    def claim(self, key: Key, candidates: Sequence[Candidate], clock: float) -> list[Candidate]:
        """Those of `candidates` that are ours to measure now: not yet measured, not being measured by another.

        Args:
            clock: the time in seconds, `time.time()`.
        """
        with self._transaction():
            for owner, expires in self._db.execute("SELECT DISTINCT owner, max(expires) FROM claim GROUP BY owner"):
                if expires < clock or not _alive(owner):
                    self._db.execute("DELETE FROM claim WHERE owner=?", (owner,))
            mine = []
            for c in candidates:
                ident = (*_key(key), c.id)
                row = self._db.execute(f"SELECT id FROM record WHERE {_KEY} AND candidate=?", ident).fetchone()
                if row and row[0] not in self._damaged:
                    continue
                if row:  # it makes room for a measurement that can be read
                    self._db.execute("DELETE FROM record WHERE id=?", row)
                    self._damaged.discard(row[0])  # a later row may get its number
                cursor = self._db.execute(
                    "INSERT OR IGNORE INTO claim VALUES(?,?,?,?,?,?,?,?)",
                    (*ident, self.owner, clock + CLAIM_SECONDS),
                )
                if cursor.rowcount:
                    mine.append(c)
        return mine

    def release(self) -> None:
        """Give back what this process claimed and did not measure."""
        with self._transaction():
            self._db.execute("DELETE FROM claim WHERE owner=?", (self.owner,))

    # -- sessions ----------------------------------------------------------------------------------

    def begin(self, session: str, model: str, target: str, info: str = "") -> tuple[int, float]:
        """Start or resume a session; (trials, seconds) it has used so far. `info`: see :class:`Session`."""
        with self._transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO session(id,model,target,started,info) VALUES(?,?,?,?,?)",
                (session, model, target, now(), info),
            )
            self._tell(session, info)
        return self.used(session)

    def tell(self, session: str, facts: Mapping[str, Any]) -> None:
        """Have a session remember something, beside what it remembers already."""
        with self._transaction():
            self._tell(session, json.dumps(facts))

    def _tell(self, session: str, info: str) -> None:
        if info:
            known = "CASE WHEN json_valid(info) THEN info ELSE '{}' END"
            self._db.execute(f"UPDATE session SET info=json_patch({known}, ?) WHERE id=?", (info, session))

    def facts(self, session: str) -> dict[str, Any]:
        """What a session remembers."""
        with self._reading():
            row = self._db.execute("SELECT coalesce(info,'') FROM session WHERE id=?", (session,)).fetchone()
        try:
            found = json.loads(row[0]) if row else {}
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def sessions(self) -> list[Session]:
        """Every session, in the order they were begun."""
        columns = "id,model,target,seconds,started,coalesce(info,'')"
        with self._reading():
            rows = self._db.execute(f"SELECT {columns} FROM session ORDER BY started, rowid")
            return [Session(*row) for row in rows.fetchall()]

    def used(self, session: str) -> tuple[int, float]:
        """(trials, seconds) of a session, all tuners that share it together."""
        with self._reading():
            (trials,) = self._db.execute("SELECT count(*) FROM record WHERE session=?", (session,)).fetchone()
            row = self._db.execute("SELECT seconds FROM session WHERE id=?", (session,)).fetchone()
        return trials, row[0] if row else 0.0

    def spend(self, session: str, seconds: float) -> None:
        """Count time that no measurement stands for (finals, the cost model)."""
        with self._transaction():
            self._db.execute("UPDATE session SET seconds=seconds+? WHERE id=?", (seconds, session))

    # -- workloads ---------------------------------------------------------------------------------

    def put_workload(self, digest: str, module: str) -> None:
        """Keep a workload's IR (TVM's JSON), so that records can be verified and exported without the model."""
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO workload VALUES(?,?)", (digest, zlib.compress(module.encode())))

    def workloads(self) -> Iterator[tuple[str, str]]:
        """Every (hash, module)."""
        with self._reading():
            rows = self._db.execute("SELECT hash, module FROM workload ORDER BY hash").fetchall()
        for digest, module in rows:
            with self._reading():
                text = zlib.decompress(module).decode()
            yield digest, text

    def workload(self, digest: str) -> str | None:
        with self._reading():
            row = self._db.execute("SELECT module FROM workload WHERE hash=?", (digest,)).fetchone()
            return zlib.decompress(row[0]).decode() if row else None


def _key(key: Key) -> tuple[str, str, str, str, int]:
    return key.workload, key.target, key.tvm, key.family, key.version


def _id(record: Record) -> tuple[Any, ...]:
    return (*_key(record.key), record.candidate.id)


def _verdict_text(verdict: Verdict | None) -> str:
    return json.dumps(verdict.__dict__) if verdict else ""


def _record(row: Sequence[Any]) -> Record:
    """The record of a row.

    Raises:
        ValueError, TypeError: it is damaged.
    """
    data = dict(zip(_COLUMNS.split(","), row, strict=True))
    texts = {name: plain_data(data[name] or "null") for name in ("knobs", "samples", "verdict")}
    return record_of({**data, **texts, "family_version": data["version"]}, data["target"])


def _owner() -> str:
    """This process: its number, its start and the boot, so that a number used again is another owner."""
    return f"{os.getpid()}:{_started(os.getpid())}:{_boot()}"


def _alive(owner: str) -> bool:
    pid, _, rest = owner.partition(":")
    started, _, boot = rest.partition(":")
    if boot != _boot():
        return True  # another machine's, on a shared file: its claim ends by the clock
    return _started(int(pid)) == started


def _started(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "gone"
    return "gone" if fields[0] in "ZX" else fields[19]


def _boot() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else "here"
