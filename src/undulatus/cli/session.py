"""One run of a command: what it says on standard error and in logs, and what ends it.

All that is said goes through the logger ``undulatus``: lines of level INFO, warnings, errors, and
the progress that :mod:`undulatus._progress` reports. A :class:`Display` shows it on standard
error, and a :class:`LogFile` for each ``--log``.
"""

from __future__ import annotations

import errno
import logging
import os
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import click

from undulatus._progress import LOGGER, Progress

INTERRUPTED = 130
"""Exit status after Ctrl-C, by custom of shells: 128 and the number of the signal."""

TERMINATED = 143
"""Exit status after SIGTERM, which batch systems and service managers send."""

LEAST_SECONDS, MOST_SECONDS = 5.0, 60.0
"""Time between lines of progress: the first in the first minutes, the other after an hour."""

REPEAT_SECONDS = 0.02
"""After which an interrupt that was lost is repeated."""

FOR_DEVELOPERS = (
    DeprecationWarning, PendingDeprecationWarning, FutureWarning, ImportWarning, ResourceWarning,
)  # fmt: skip
"""Warnings that ``--quiet`` leaves out, for they do not concern the results."""


def printable(text: str) -> str:
    """Return text with control characters escaped, which could command a terminal."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def as_command_line(arguments: list[str]) -> str:
    """Return arguments as they would be typed."""
    return printable(shlex.join(["undulatus", *arguments]))


class Session:
    """A command that runs, with the arguments it was given."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments
        self.command_line = as_command_line(arguments)
        self.debug = False
        self.display = Display(self)
        self.terminated = False
        self.tells_progress = True
        """Whether lines of progress are written where there is no bar: not for years on end."""
        self._waiting: list[Path] = []
        self._logs: list[LogFile] = []
        self._began = time.monotonic()
        self._context: click.Context | None = None

    @staticmethod
    def of(context: click.Context) -> Session:
        """Return the session of a command, which all of its contexts share."""
        session = context.meta["undulatus.session"]
        assert isinstance(session, Session)
        return session

    @property
    def interrupt_status(self) -> int:
        """The exit status after an interrupt."""
        return TERMINATED if self.terminated else INTERRUPTED

    @property
    def command(self) -> str | None:
        """The command's name, as soon as it is known."""
        return None if self._context is None else self._context.invoked_subcommand

    @property
    def full_name(self) -> str:
        """What warnings and errors begin with: the program, and the command."""
        return "undulatus" if self.command is None else f"undulatus {self.command}"

    def open_log(self, path: Path) -> None:
        """Append to a log from when the command runs; one that cannot be opened is bad usage."""
        if self._context is None:
            self._waiting.append(path)
            return
        log = LogFile(path, self)
        self._logs.append(log)
        LOGGER.addHandler(log)
        made = f"undulatus {version('undulatus')}: {self.command_line}"
        log.handle(_record(logging.INFO, f"start: {made} (in {os.getcwd()})"))

    @contextmanager
    def running(self, context: click.Context) -> Iterator[Session]:
        """Show what is said and end on SIGTERM as on Ctrl-C, until the command is over."""
        self._context = context
        _fill_closed_streams()
        level = LOGGER.level
        LOGGER.setLevel(logging.DEBUG)
        LOGGER.addHandler(self.display)
        status = 1
        try:
            for path in self._waiting:
                self.open_log(path)
            with (
                _logged_warnings(),
                self._ending_on_sigterm(),
                self._repeating_lost_interrupts(),
            ):
                yield self
            status = 0
        except click.exceptions.Exit as leave:
            status = leave.exit_code
            raise
        except click.ClickException as error:
            status = error.exit_code
            # click prints it.
            self._tell_logs(logging.ERROR, error.format_message())
            raise
        except SystemExit as leave:
            status = int(leave.code or 0)
            raise
        except BaseException as error:
            self._tell_logs(logging.ERROR, str(error), error)
            raise
        finally:
            self.display.close()
            LOGGER.removeHandler(self.display)
            took = time.monotonic() - self._began
            self._tell_logs(logging.INFO, f"end: exit status {status} after {took:.1f} s")
            for log in self._logs:
                LOGGER.removeHandler(log)
                log.close()
            LOGGER.setLevel(level)

    def fail(self, message: str, error: BaseException) -> None:
        """Say what went wrong, with the notes that were added to the error on its way.

        The traceback is for logs alone.
        """
        self.display.end_bar()
        text = "\n".join([message, *getattr(error, "__notes__", [])])
        LOGGER.error("%s", text, exc_info=error)

    def _tell_logs(self, level: int, message: str, error: BaseException | None = None) -> None:
        for log in self._logs:
            log.handle(_record(level, message, error))

    @contextmanager
    def _ending_on_sigterm(self) -> Iterator[None]:
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):
            yield
            return
        signal.signal(signal.SIGTERM, self._stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _stop(self, number: int, frame: Any) -> None:
        self.terminated = True
        # Once is enough: a second one must not disturb the tidying.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    @contextmanager
    def _repeating_lost_interrupts(self) -> Iterator[None]:
        """Interrupt again if Python drops an interrupt, as it does in any ``__del__``."""
        before = sys.unraisablehook
        timers: list[threading.Timer] = []

        def repeat(lost: sys.UnraisableHookArgs) -> None:
            if not issubclass(lost.exc_type, KeyboardInterrupt):
                before(lost)
                return
            number = signal.SIGINT
            if self.terminated:
                number = signal.SIGTERM
                signal.signal(number, self._stop)
            # A moment later: what is raised in here would be dropped, too.
            timers.append(threading.Timer(REPEAT_SECONDS, os.kill, (os.getpid(), number)))
            timers[-1].start()

        sys.unraisablehook = repeat
        try:
            yield
        finally:
            sys.unraisablehook = before
            for timer in timers:
                timer.cancel()


def drop_last_words() -> None:
    """Print nothing of what an interrupt left undone, as libraries do while Python ends."""
    sys.unraisablehook = lambda lost: None
    logging.getLogger("asyncio").disabled = True


def _fill_closed_streams() -> None:
    """Open the null device in the place of standard streams that are closed.

    The next file would get the number of a closed one, and all that libraries print there.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _record(level: int, message: str, error: BaseException | None = None) -> logging.LogRecord:
    caught = None if error is None else (type(error), error, error.__traceback__)
    return LOGGER.makeRecord(LOGGER.name, level, "", 0, "%s", (message,), caught)


@contextmanager
def _logged_warnings() -> Iterator[None]:
    """Turn Python's warnings into records, which name their category and where they are from."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        extra = {"category": category, "place": f"{filename}:{lineno}"}
        LOGGER.warning("%s", message, extra=extra)

    with warnings.catch_warnings():
        warnings.showwarning = show
        # A library's notice to developers must not end a command, as rasterio's would under
        # PYTHONWARNINGS=error, which users set for code of their own.
        if any(option.startswith("e") for option in sys.warnoptions):
            warnings.simplefilter("default")
        yield


class Pace:
    """Says when a line of progress is due: every few seconds, and every minute after an hour."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()

    def is_due(self) -> bool:
        """Return whether it is time for a line, which is taken to be written then."""
        now = time.monotonic()
        apart = min(max((now - self._began) / 60.0, LEAST_SECONDS), MOST_SECONDS)
        if now - self._last < apart:
            return False
        self._last = now
        return True

    def start_again(self) -> None:
        """Count from now: something else has been said."""
        self._last = time.monotonic()


class Display(logging.Handler):
    """Standard error: lines, and one bar on a terminal or, elsewhere, a line every few seconds."""

    def __init__(self, session: Session) -> None:
        super().__init__(logging.DEBUG)
        self.quiet = False
        self._session = session
        self._pace = Pace()
        self._bar: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record, unless ``--quiet`` forbids it; work goes on if nobody can see it."""
        try:
            if hasattr(record, "progress"):
                if not self.quiet:
                    self._show(record.progress)
            elif self._matters(record):
                self._print(self.format(record))
        except OSError:
            # Standard error is closed, or on a full disk.
            return

    def format(self, record: logging.LogRecord) -> str:
        """Return a line as it is; of warnings and errors, with the command."""
        message = printable(record.getMessage())
        if record.levelno < logging.WARNING:
            return message
        kind = "warning: " if record.levelno < logging.ERROR else ""
        return f"{self._session.full_name}: {kind}{message}"

    def end_bar(self) -> None:
        """Take the bar away, if there is one: what is printed next begins a line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def close(self) -> None:
        """Take the bar away for good."""
        self.end_bar()
        super().close()

    def _matters(self, record: logging.LogRecord) -> bool:
        if not self.quiet:
            return record.levelno >= logging.INFO
        category = getattr(record, "category", UserWarning)
        return record.levelno >= logging.WARNING and not issubclass(category, FOR_DEVELOPERS)

    def _print(self, line: str) -> None:
        self._pace.start_again()
        if self._bar is None:
            click.echo(line, err=True)
        else:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _show(self, progress: Progress | None) -> None:
        if progress is None:
            self.end_bar()
        elif not _is_terminal():
            if self._session.tells_progress and self._pace.is_due():
                click.echo(printable(str(progress)), err=True)
        else:
            if self._bar is None:
                self._bar = _start_bar()
            self._bar.update(
                self._bar.task_ids[0],
                description=printable(progress.what),
                completed=progress.share or 0.0,
                total=None if progress.share is None else 1.0,
                detail=printable(", ".join(filter(None, (progress.time_left, progress.detail)))),
            )


def _is_terminal() -> bool:
    # It is None where standard error was closed before Python began.
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _start_bar() -> Any:
    """Return a bar of rich's that is shown; it is taken away when it stops."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    bar = Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn(
            "{task.fields[detail]}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
        console=Console(stderr=True),
        # Results are printed on standard output as they are.
        redirect_stdout=False,
        transient=True,
        expand=True,
    )
    bar.start()
    bar.add_task("", total=None, detail="")
    return bar


class LogFile(logging.Handler):
    """A file of lines: time (UTC), level, process, command, and what was said.

    Each record is appended in one write, so that several processes may share a file; lines after
    its first are indented. Progress has the level PROGRESS, and is written every few seconds.
    """

    def __init__(self, path: Path, session: Session) -> None:
        # Before logging knows this handler, which it closes in any case.
        self._file: int | None = None
        super().__init__(logging.DEBUG)
        self.path = path.absolute()
        self._session = session
        self._pace = Pace()
        self._failed = False
        try:
            self._file = self._open()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise click.BadParameter(
                f"{printable(str(path))} cannot be opened: {reason}"
            ) from error

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record; if it cannot be written, say so once, and let the work go on."""
        if hasattr(record, "progress") and not self._session.tells_progress:
            return
        if getattr(record, "progress", None) is not None and not self._pace.is_due():
            return
        line = self.format(record)
        try:
            if self._file is not None:
                self._follow_rotation(self._file)
                _write_whole(self._file, line.encode("utf-8", "backslashreplace"))
        except OSError as error:
            if not self._failed:
                self._failed = True
                said = f"the log {self.path} cannot be written: {error.strerror}. Work goes on."
                self._session.display.handle(_record(logging.WARNING, said))

    def _open(self) -> int:
        # A pipe that nobody reads is an error, not something to wait for.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NONBLOCK", 0)
        return os.open(self.path, flags, 0o666)

    def _follow_rotation(self, file: int) -> None:
        """Open the log anew if it was renamed or removed."""
        try:
            if os.path.samestat(os.stat(self.path), os.fstat(file)):
                return
        except FileNotFoundError:
            pass
        self._file = self._open()
        os.close(file)

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        now = datetime.fromtimestamp(record.created, UTC)
        level = "PROGRESS" if hasattr(record, "progress") else record.levelname
        message = record.getMessage()
        if hasattr(record, "category"):
            message = f"{record.category.__name__}: {message} ({getattr(record, 'place', '')})"
        if record.exc_info:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        lines = printable(message).rstrip("\n").replace("\n", "\n    ")
        stamp = now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond // 1000:03d}Z"
        return f"{stamp} {level} {os.getpid()} {self._session.command or '-'} {lines}\n"

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        super().close()


def _write_whole(file: int, data: bytes) -> None:
    if os.write(file, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
