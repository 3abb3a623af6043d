"""Each new item of a folder mapped once, whatever happens to the process.

An item goes through four steps: its map is written, whole, to a folder of its own in
``OUT/.watch``; the ledger records it; the map gets its name in ``OUT``; the folder is removed. A
process that is killed before the record leaves a folder that the next one removes
(:mod:`undulatus.products.watch.work`), and the item
is mapped again; one that is killed after it leaves a folder from which the next one moves the map
to its name. So nothing is lost, and nothing that was recorded is mapped again.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dask.utils

from undulatus._files import (
    FULL,
    WritingError,
    as_scene_errors,
    as_writing_errors,
    content_digest,
    locked,
    remove,
    remove_unfinished,
    write_text,
)
from undulatus._system import trim_memory
from undulatus.errors import InputError, SceneError, UndulatusError
from undulatus.products.legend import Legend
from undulatus.products.map_files import ModelFile, WrittenMap, map_of_file
from undulatus.products.watch.arrivals import Arrivals, Facts, Look, arrival_time, own_facts
from undulatus.products.watch.health import (
    FINISHED,
    HEALTH_NAME,
    MAPPING,
    STARTING,
    STOPPED,
    TROUBLE,
    WAITING,
    HealthFile,
    recent_facts,
)
from undulatus.products.watch.ledger import LEDGER_NAME, Ledger, item_key, utc_text
from undulatus.products.watch.retention import SECONDS_BETWEEN_SWEEPS, remove_old
from undulatus.products.watch.work import WORK_NAME, WorkFolder, is_ours
from undulatus.scenes.files import NETCDF
from undulatus.scenes.files.geotiff import files_of_map
from undulatus.scenes.files.images import RASTERS
from undulatus.scenes.files.inputs import Inputs
from undulatus.scenes.files.opening import input_digest
from undulatus.scenes.files.writing import GEOTIFF

SET_ASIDE_NAME = "set-aside"

KNOWN_ENDINGS = (*NETCDF, *RASTERS, ".zarr", ".nat", ".safe", ".bufr")
"""Endings that the name of an item loses in the name of its map."""

PASSING = FULL | {
    *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EBUSY),
    *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENOTCONN),
    *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EREMOTEIO, errno.ENODEV),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM, errno.EROFS),
}
"""Errors of the system that say nothing about the item, and may pass."""

SECONDS_BETWEEN_CHECKS = 60.0
"""Time between two looks at whether items that are done were replaced."""

FIRST_PAUSE, LONGEST_PAUSE = 10.0, 300.0
"""Seconds until an item is tried again after an error that may pass; doubled each time."""

LONGEST_NAME = 180
"""Bytes of the name of an item that a file with the reason why it was set aside is called by."""

MOST_DEATHS = 5
"""An item during which the process died so many times in a row is set aside."""


@dataclass(frozen=True)
class MapOptions:
    """How maps are made: as of :func:`undulatus.products.map_files.map_of_file`, and a suffix."""

    suffix: str = ".nc"
    encoding: str = "cf"
    legend: Legend | None = None
    allow_outside: bool = False
    memory_limit: str | None = None
    command: str = "watch"
    """For the history of maps."""
    reading: Mapping[str, Any] = field(default_factory=dict)
    """Options of :class:`undulatus.scenes.files.inputs.Inputs`, such as a box."""


@dataclass
class Counts:
    """Items since the start."""

    mapped: int = 0
    set_aside: int = 0
    failed: int = 0
    """Attempts that ended with an error that may pass."""


OnSetAside = Callable[[Path, str, Path], None]


@dataclass(frozen=True)
class Unmapped:
    """Names of items in the watched folder that have no map."""

    set_aside: list[str]
    failed: list[str]
    """Those that are tried again, for what went wrong may pass."""
    unreadable: list[str]

    def __bool__(self) -> bool:
        return bool(self.set_aside or self.failed or self.unreadable)


@contextmanager
def watching(
    arrivals: Arrivals,
    model: ModelFile,
    output: Path,
    options: MapOptions,
    *,
    health: Path | None = None,
    metrics: Path | None = None,
    retry: bool = False,
    new_model: bool = False,
    keep: float | None = None,
    on_set_aside: OnSetAside = lambda item, reason, file: None,
    say: Callable[[str], None] = lambda line: None,
    warn: Callable[[str], None] | None = None,
) -> Iterator[Watcher]:
    """Give the only watcher of an output folder; at its end it leaves nothing unfinished.

    Parameters
    ----------
    arrivals : Arrivals
        The folder to watch, which ``output`` must not lie in.
    model : ModelFile
        The model that maps every item.
    output : path
        The folder of the maps, the ledger and the health; it is made if it does not exist.
    options : MapOptions
        How maps are made.
    health : path, optional
        The health file, if not in ``output``.
    metrics : path, optional
        A file with the same in the text format of Prometheus.
    retry : bool
        Try what was set aside again.
    new_model : bool
        Go on although earlier maps are of another model, encoding or legend.
    keep : float, optional
        Seconds after which maps are removed, and items that are gone from the folder forgotten
        (:func:`undulatus.products.watch.retention.remove_old`).
    on_set_aside : callable
        Takes the path of an item that was set aside, the reason, and the file with the reason.
    say : callable
        Takes a line for each item.
    warn : callable, optional
        Takes the lines about what went wrong, in place of ``say``.
    """
    folder, place = arrivals.folder.resolve(), output.resolve()
    if place.is_relative_to(folder):
        raise InputError(
            f"{output} is in {arrivals.folder}, which is watched: maps would be taken for data. "
            f"Give another folder for the maps."
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{output} cannot be made: {error.strerror}.") from error
    path = output / LEDGER_NAME
    with ExitStack() as held:
        with as_scene_errors(path), as_writing_errors():
            held.enter_context(locked(path))
            ledger = Ledger(path)
            _require_same_settings(ledger, model, options, new_model)
            if retry:
                ledger.forget_faults()
            file = HealthFile(health or output / HEALTH_NAME, metrics)
            watcher = Watcher(
                arrivals,
                model,
                output,
                options,
                ledger,
                file,
                say,
                warn or say,
                on_set_aside,
                keep,
            )
            if ledger.damaged:
                watcher.warn(
                    f"{path} has {ledger.damaged} damaged lines, which are passed over: what they "
                    f"recorded is not known to be mapped."
                )
            watcher.remove_leftovers()
        try:
            yield watcher
        finally:
            watcher.stop()


def _require_same_settings(
    ledger: Ledger, model: ModelFile, options: MapOptions, new_model: bool
) -> None:
    """Record what maps depend on, or raise if it has changed and that was not asked for."""
    legend = None if options.legend is None else options.legend.as_dict()
    settings = {"model": model.sha256, "encoding": options.encoding, "legend": legend}
    settings["reading"] = dict(options.reading) or None
    # As they will be read back.
    settings = json.loads(json.dumps(settings))
    differing = [key for key in settings if ledger.settings.get(key) != settings[key]]
    if not differing:
        return
    if ledger.settings and not new_model:
        listed = "".join(
            f"  {key}: {settings[key]}, but {ledger.settings.get(key)} before\n"
            for key in differing
        )
        raise InputError(
            f"{ledger.path} lists maps that were made otherwise.\n{listed}"
            f"Give another folder for the maps, or go on with --new-model: earlier maps stay, and "
            f"new items are mapped as asked for now."
        )
    ledger.record_settings(settings)


@dataclass
class Watcher:
    """Looks into a folder and maps what is new; made by :func:`watching`.

    Attributes
    ----------
    counts : Counts
        What was done since the start.
    """

    arrivals: Arrivals
    model: ModelFile
    output: Path
    options: MapOptions
    ledger: Ledger
    health: HealthFile
    say: Callable[[str], None]
    warn: Callable[[str], None]
    on_set_aside: OnSetAside
    keep: float | None = None
    counts: Counts = field(default_factory=Counts)
    _pauses: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Items that failed for a reason that may pass: until when they rest, and for how long.

    The name of the folder itself is empty here.
    """
    _look: Look = field(default_factory=lambda: Look([]))
    _unreadable: str = ""
    """Entries that were last told to be unreadable."""
    _left: int = 0
    """Items that are ready, but not mapped yet."""
    _checked: float = -1e9
    _swept: float = -1e9
    _said: set[str] = field(default_factory=set)
    """Lines that were said of an item, without its name."""
    _last_state: str = STOPPED
    """What the health file says in the end."""
    _facts: dict[str, Any] = field(default_factory=dict)
    """Of the health: what is known at certain moments only."""

    def __post_init__(self) -> None:
        self._work = WorkFolder(self.output / WORK_NAME)
        self._facts = {"started": utc_text(), "last item": "none", "last error": "none"}
        self._beat(STARTING)

    # One look after the other

    def run(self, every: float, *, once: bool = False) -> Unmapped:
        """Look every so many seconds; with ``once`` until all that is there has been tried.

        Returns what in the folder is not mapped then.
        """
        while True:
            unsettled = self.look(time.monotonic())
            if once and not unsettled:
                folder, aside = self.arrivals.folder, sorted(self.ledger.items_set_aside)
                left = Unmapped(
                    [name for name in aside if (folder / name).exists()],
                    [name or str(folder) for name in self._pauses],
                    self._look.unreadable,
                )
                self._last_state = TROUBLE if left.failed or left.unreadable else FINISHED
                return left
            time.sleep(min(every, max(self.arrivals.settle, 0.05)) if once else every)

    def look(self, now: float) -> int:
        """Look into the folder, map what is ready, and return how many items are not ready yet.

        Parameters
        ----------
        now : float
            The time in seconds, by a clock that is never set.
        """
        again = now - self._checked >= SECONDS_BETWEEN_CHECKS
        folder = self.arrivals.folder
        try:
            self.tidy()
            self._look = self.arrivals.look(self.ledger.done, now, again=again)
        except OSError as error:
            if "" not in self._pauses:
                self.warn(f"failed {folder}: {error}. It is tried again.")
            self._pauses[""] = (now, 0.0)
            self._note_error(str(folder), error)
            self._beat(TROUBLE)
            return 0
        if again:
            self._checked = now
        self._warn_of_segments()
        self._warn_of_unreadable()
        self._sweep(now)
        here = {path.name for path in self._look.ready}
        self._pauses = {name: pause for name, pause in self._pauses.items() if name in here}
        due = [path for path in self._look.ready if self._is_due(path.name, now)]
        changed = 0
        for index, path in enumerate(due):
            self._left = len(due) - index
            aside = self.counts.set_aside
            changed += not self._take(path, now)
            if self.counts.set_aside > aside:
                # A file whose reading failed is closed when its error is collected.
                gc.collect()
            # dask remembers the last 100,000 names of tasks: 40 MB.
            dask.utils.key_split.cache_clear()
            trim_memory()
        self._left = 0
        self._beat(self._state())
        return self._look.unsettled + changed

    def _sweep(self, now: float) -> None:
        """Remove what is old, at the start and once a day."""
        if self.keep is None or now - self._swept < SECONDS_BETWEEN_SWEEPS:
            return
        self._swept = now
        try:
            removed = remove_old(
                self.ledger,
                self.output,
                set(os.listdir(self.arrivals.folder)),
                utc_text(self.keep),
                self._reason_file,
                self.warn,
            )
        except OSError as error:
            self._note_error("old maps", error)
            self.warn(f"old maps cannot be removed: {error}. It is tried again in a day.")
            return
        if removed.maps or removed.forgotten:
            self.say(f"{removed}.")

    def _is_due(self, name: str, now: float) -> bool:
        return self._pauses.get(name, (now, 0.0))[0] <= now

    def _state(self) -> str:
        return TROUBLE if self._pauses or self._look.unreadable else WAITING

    def _warn_of_segments(self) -> None:
        if self._look.segments and "segments" not in self._facts:
            self.warn(
                f"{self.arrivals.folder} holds {self._look.segments} segments of HRIT, which are "
                f"ignored: give each acquisition a folder of its own."
            )
        if self._look.segments:
            self._facts["segments"] = f"{self._look.segments} of HRIT outside folders, ignored"

    def _warn_of_unreadable(self) -> None:
        listed = ", ".join(self._look.unreadable)
        if listed and listed != self._unreadable:
            self.warn(f"cannot look at {listed} in {self.arrivals.folder}: a link to nowhere?")
            self._facts["last error"] = f"{utc_text()} {listed}: cannot be looked at"
        self._unreadable = listed

    def _take(self, path: Path, now: float) -> bool:
        """Map an item, or set it aside; return False if it changed meanwhile."""
        name = path.name
        self._facts["last item"] = name
        self._beat(MAPPING)
        try:
            facts, digest = own_facts(path), _digest(path)
            if self.ledger.has(name, digest):
                self.ledger.refresh(name, facts)
            else:
                self._map_or_set_aside(path, digest, facts)
            self._pauses.pop(name, None)
        except _ChangedError:
            self.say(f"changed {name}: it is mapped when it stays as it is.")
            return False
        except Exception as error:
            self._leave_for_later(path, error, now)
        return True

    def _map_or_set_aside(self, path: Path, digest: str, facts: Facts) -> None:
        with self._work.counting_deaths(item_key(path.name, digest)) as deaths:
            try:
                if deaths >= MOST_DEATHS:
                    raise SceneError(
                        f"The process ended {deaths} times while it mapped {path}: too little "
                        f"memory, or a file that crashes the library which reads it."
                    )
                line = self._map(path, digest)
            except Exception as error:
                if not os.path.exists(path) or _may_pass(error):
                    raise
                if _digest(path) != digest:
                    raise _ChangedError from error
                self._set_aside(path.name, digest, facts, error)
            else:
                self.counts.mapped += 1
                self.say(f"mapped {path.name}: {line}")

    def _leave_for_later(self, path: Path, error: Exception, now: float) -> None:
        name = path.name
        if not os.path.exists(path):
            self.say(f"gone {name}: it was removed before it was mapped.")
            return
        _, pause = self._pauses.get(name, (0.0, FIRST_PAUSE / 2))
        pause = min(2 * pause, LONGEST_PAUSE)
        self._pauses[name] = (now + pause, pause)
        self.counts.failed += 1
        self._note_error(name, error)
        reason = _first_line(error).rstrip(".")
        self.warn(f"failed {name}: {reason}. It is tried again in {pause:.0f} s.")

    def _note_error(self, name: str, error: BaseException) -> None:
        self._facts["last error"] = f"{utc_text()} {name}: {error}"

    # Mapping

    def _map(self, path: Path, digest: str) -> str:
        """Map an item, record it, give its map the name; return a line about it."""
        start = time.monotonic()
        output = self._output_name(path.name)
        work = self._work.begin(item_key(path.name, digest))
        try:
            written = self._write(path, work / output)
            facts, arrived = own_facts(path), arrival_time(path)
            if _digest(path) != digest:
                raise _ChangedError
        except BaseException:
            remove(work)
            raise
        seconds = time.monotonic() - start
        # Clocks of network disks may be ahead of this one.
        latency = max(time.time() - arrived, 0.0)
        # Errors from here on are those of the disk, whatever they are.
        with as_writing_errors():
            record = self.ledger.record_map(
                path.name,
                digest,
                facts,
                [output.name for output in (*written.paths, *written.beside)],
                model=self.model.sha256,
                seconds=round(seconds, 3),
                latency=round(latency, 3),
                made={each.name: own_facts(each) for each in written.paths if each.is_file()},
                pixels=asdict(written.summary),
            )
            self._publish(record, work)
        with suppress(OSError):
            remove(self._reason_file(path.name))
        return f"{self.output / record['outputs'][0]} ({seconds:.1f} s): {written.summary}"

    def _write(self, path: Path, output: Path) -> WrittenMap:
        def progress(done: float, total: float) -> None:
            if self.health.is_due():
                self._beat(MAPPING)

        with map_of_file(
            self.model,
            Inputs((path,), **self.options.reading),
            warn=lambda line: self._warn_once(line, path),
            encoding=self.options.encoding,
            legend=self.options.legend,
            allow_outside=self.options.allow_outside,
            memory_limit=self.options.memory_limit,
            command=self.options.command,
            folder=self.output,
        ) as mapped:
            try:
                written = mapped.write(output, progress)
            finally:
                # Else it stays open until Python collects what refers to it.
                mapped.scene.close()
        if written.summary.mapped == 0:
            raise SceneError(f"No pixel of {path} can be mapped: each lacks the value of a band.")
        return written

    def _warn_once(self, line: str, path: Path) -> None:
        """Say what is true of all items alike when it is said of the first."""
        kind = line.replace(str(path), "")
        if kind not in self._said:
            self._said.add(kind)
            self.warn(line)

    def _output_name(self, name: str) -> str:
        """Return the name of the map of an item: its own with another ending.

        If another item has a map of this name, as ``a.nc`` beside ``a.zarr``, the ending is added.
        """
        stem = name[: -len(Path(name).suffix)] if name.lower().endswith(KNOWN_ENDINGS) else name
        for base in dict.fromkeys((stem, name)):
            output = Path(f"{base}{self.options.suffix}")
            raster = self.options.suffix in GEOTIFF
            files = files_of_map(output) if raster else (output,)
            owners = {each.name: self.ledger.owner(each.name) for each in files}
            if any(owner not in (None, name) for owner in owners.values()):
                continue
            for each, owner in owners.items():
                if owner is None and (self.output / each).exists():
                    raise SceneError(
                        f"{self.output / each} exists, and this watcher did not write it. Move it "
                        f"away, then try {name} again (--retry)."
                    )
            return output.name
        raise SceneError(
            f"Other items have maps of the names that {name} could have in {self.output}. Rename "
            f"it."
        )

    def _publish(self, record: dict[str, Any], work: Path) -> None:
        """Give the files of a recorded map their names, if they do not have them yet."""
        # The first is moved last: where it is, the others are.
        for name in reversed(record["outputs"]):
            made, final = work / name, self.output / name
            if made.exists():
                if final.is_dir():
                    # A folder cannot replace another at once.
                    final.rename(work / f"{name}.replaced")
                made.replace(final)
        for name in record.get("superseded", ()):
            remove(self.output / name)
        descriptor = os.open(self.output, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        remove(work)

    def tidy(self) -> None:
        """Finish what was recorded, and remove what a process that ended too early left behind."""
        for work in self._work.folders():
            record = self.ledger.recover_map(work.name)
            if record is not None:
                self._publish(record, work)
            elif is_ours(work):
                remove(work)

    def remove_leftovers(self) -> None:
        """Remove what a killed process left behind, in all folders that the watcher writes to."""
        self.tidy()
        self._work.remove_leftovers()
        remove_unfinished(self.health.path)
        for file in list((self.output / SET_ASIDE_NAME).glob("*.txt")):
            left = fnmatchcase(file.name, ".*.unfinished-*.txt")
            if left or self.ledger.is_mapped(file.name.removesuffix(".txt")):
                remove(file)

    # Setting aside

    def _set_aside(self, name: str, digest: str, facts: Facts, error: Exception) -> None:
        expected = isinstance(error, UndulatusError)
        reason = str(error) if expected else f"{type(error).__name__}: {error}"
        more = "" if expected else "\n" + "".join(traceback.format_exception(error))
        file = self._reason_file(name)
        file.parent.mkdir(exist_ok=True)
        text = f"{utc_text()} {self.arrivals.folder / name}\n{reason}\n{more}"
        write_text(file, text.encode("utf-8", "backslashreplace").decode())
        self.ledger.record_fault(name, digest, facts, reason, model=self.model.sha256)
        self.counts.set_aside += 1
        self._facts["last set aside"] = f"{utc_text()} {name}: {reason}"
        self.warn(f"set aside {name} (see {file}): {_first_line(reason)}")
        self.on_set_aside(self.arrivals.folder / name, reason, file)

    def _reason_file(self, name: str) -> Path:
        # Names may be of other encodings, and too long for a temporary file beside.
        plain = name.encode("utf-8", "backslashreplace").decode()
        if len(plain.encode()) > LONGEST_NAME:
            plain = f"{plain[:60]}-{item_key(name, '')}"
        return self.output / SET_ASIDE_NAME / f"{plain}.txt"

    # Health

    def stop(self) -> None:
        """Leave nothing unfinished, and say so in the health file."""
        with suppress(OSError):
            self.tidy()
            self._work.close()
        self._beat(self._last_state)

    def _beat(self, state: str) -> None:
        look = self._look
        free = "unknown"
        with suppress(OSError):
            free = f"{shutil.disk_usage(self.output).free / 2**30:.1f} GiB"
        ignored = f"{look.ignored}, such as {look.example}" if look.ignored else "0"
        self.health.write(
            {
                "state": state,
                "updated": utc_text(),
                "process": os.getpid(),
                "host": socket.gethostname(),
                "mapped": self.ledger.mapped,
                "set aside": self.ledger.set_aside,
                "waiting": look.unsettled
                + len(look.unreadable)
                + max(self._left, len(self._pauses)),
                "ignored": ignored,
                "mapped since start": self.counts.mapped,
                "set aside since start": self.counts.set_aside,
                "failed since start": self.counts.failed,
                **self._facts,
                **recent_facts(self.ledger.recent),
                "free disk": free,
                "folder": self.arrivals.folder.absolute(),
                "model": self.model.path.absolute(),
                "model sha256": self.model.sha256,
                "version": version("undulatus"),
            }
        )


class _ChangedError(SceneError):
    """An item is not what it was when its mapping began."""


def _digest(path: Path) -> str:
    """Return the checksum of an item, also of one that cannot be opened."""
    try:
        return input_digest(path)
    except Exception as error:
        # What the system says is not about the content.
        if isinstance(error, OSError) and (error.errno or 0) > 0:
            raise
        return content_digest([path])


def _may_pass(error: BaseException) -> bool:
    """Return whether an error is about the disk, the network or the memory, not about the item."""
    link: BaseException | None = error
    while link is not None:
        is_system = isinstance(link, OSError) and link.errno in PASSING
        is_memory = isinstance(link, MemoryError) and not isinstance(link, UndulatusError)
        if is_system or is_memory or isinstance(link, WritingError):
            return True
        link = link.__cause__ or link.__context__
    return False


def _first_line(error: object) -> str:
    return (str(error).splitlines() or [""])[0]
