"""Find and read the runs in what a user names: folders, files, projects and sweeps on W&B's server."""

import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, one_line
from ampcompare.runs.cache import open_cache, trim_cache
from ampcompare.runs.cached_wandb_files import read_wandb_files
from ampcompare.runs.chart_exports import join_exports
from ampcompare.runs.discovery import (
    EVENTS,
    EXPORT,
    EXPORT_HELP,
    KINDS,
    LINES,
    MAX_LEFT_OUT,
    STATES,
    TABLES,
    WANDB,
    Discovery,
    NoRecordError,
    discover,
    nothing_found,
)
from ampcompare.runs.joined_rows import join_rows
from ampcompare.runs.load_options import ReadingOptions
from ampcompare.runs.missing_input import MissingInput
from ampcompare.runs.name_pattern import ARM as ARM
from ampcompare.runs.name_pattern import apply_name_pattern
from ampcompare.runs.run_record import RunRecord, merge_parts
from ampcompare.runs.same_run import unite_files
from ampcompare.runs.sources import group_by_arm
from ampcompare.runs.tables import read_tables
from ampcompare.runs.tensorboard import read_event_files
from ampcompare.runs.trainer_state import read_trainer_states
from ampcompare.runs.wandb_api import API_PREFIX, parse_source, read_server
from ampcompare.runtime.formatting import plural, printable, short, some

MAX_CACHE_SIZE = "1G"

log = logging.getLogger(__name__)


def load_runs(
    sources: Iterable[str | Path],
    *,
    step: str | None = None,
    run_by: str | None = None,
    starts: str | None = None,
    rows: str | None = None,
    run_name: str | None = None,
    where: Sequence[str] = (),
) -> list[RunRecord]:
    """Return every run in the sources, oldest first.

    A source is a folder, searched for `.wandb` files at any depth, one such file, or a pattern such as
    `logs/fp32_*` for several. `wandb:entity/project`
    and `wandb:entity/project/sweep` are read from W&B's server. A file that is found twice is read once, and
    files with the same run id become one run. If a run is on disk and on the server, the record with more
    rows counts. If both have the same number of rows, the one on disk counts, because it has the exit code
    and exact types. A run that a version before 0.3 recorded, with options that went, is left out with a
    warning.

    If a source has no `.wandb` file, logs of other programs are read: TensorBoard's event files, else CSV
    files with a step column, else Hugging Face's trainer_state.json, else JSON lines with a step. What was
    read and what else is there is logged. A file that is left out gives a warning with the reason.

    `NAME=SOURCE` names the arm of the runs in a source. It becomes their setting `arm`. Then every source
    needs a name, and the runs of the first source come first.

    Args:
        sources: At least one; a single one may be given alone.
        step: The step column of tables and JSON lines; `none` for the order of the rows. None tries the
            usual names.
        run_by: Columns of tables, separated by commas, of which each value is a run. It becomes a setting.
        starts: Of a table whose steps begin again: `last` for its last start, `joined` for all of them as
            one run that was resumed.
        rows: `runs` to read each row of a table as a run.
        run_name: A pattern for the whole name of each run or of its file. `{key}` is the value of a setting
            (`arm` is the arm, `seed` the seed), `*` is any text.
        where: The conditions on rows that the analysis gets, too: rows of other kinds are then no question.

    Raises:
        MissingInput: A log does not say what it must say, such as which of its rows are one run.
        UserError: A source does not exist, cannot be read, or has no run. A damaged file gives a sentence in
            `problems` instead. A `.wandb` file without a record, as a killed run may leave it, gives a
            warning among others.

    >>> from ampcompare import load_runs
    >>> for run in load_runs(["runs"]):
    ...     print(run.option("backend"), run.state, len(run.values("train/loss")), "losses")
    none finished 2 losses
    native finished 2 losses
    """
    options = ReadingOptions(
        step=step, run_by=run_by, starts=starts, rows=rows, run_name=run_name, where=tuple(where)
    )
    arms = group_by_arm([sources] if isinstance(sources, str | Path) else sources)
    if arms.keys() == {""}:
        return _load_arm(arms[""], options, "")
    runs: list[RunRecord] = []
    arm_of_run: dict[tuple[Any, ...], str] = {}
    for arm, arm_sources in arms.items():
        for run in _load_named_arm(arm, arm_sources, arms, options):
            identity = _identify(run)
            if identity in arm_of_run:
                raise UserError(
                    f"{run.name}: this run is in both {arm_of_run[identity]} and {arm}; "
                    "leave it out of one of them"
                )
            arm_of_run[identity] = arm
            runs.append(replace(run, config=run.config | {ARM: arm}))
    return runs


def _load_named_arm(
    arm: str, sources: Sequence[str], arms: Mapping[str, Sequence[str]], options: ReadingOptions
) -> list[RunRecord]:
    """Return the runs of one arm.

    Raises:
        MissingInput: A question about its files; the example has the sources of all arms.
    """
    try:
        return _load_arm(sources, options, arm)
    except MissingInput as missing:
        if not missing.arms:
            raise
        proposed: list[str] = []
        for other, others in arms.items():
            proposed += missing.arms if other == arm else [f"{other}={source}" for source in others]
        raise MissingInput(missing.questions, missing.arguments, proposed) from None


def _with_settings_of_names(runs: Sequence[RunRecord], options: ReadingOptions, arm: str) -> list[RunRecord]:
    """Return the runs with the settings that `--run-name` reads from their names.

    Raises:
        MissingInput: The runs are columns of a chart, and nothing names their arms.
        UserError: The pattern does not fit, or names an arm that the sources name, too.
    """
    if options.run_name is None:
        charts = [run for run in runs if run.is_of_chart]
        if charts and not arm:
            raise _arms_of_chart(charts)
        return [*runs]
    if arm and "{" + ARM + "}" in options.run_name:
        raise UserError(
            f"--run-name {options.run_name!r}: the sources have names, too; leave {{{ARM}}} out of the "
            "pattern, or NAME= out of the sources"
        )
    return apply_name_pattern(runs, options.run_name)


def _arms_of_chart(runs: Sequence[RunRecord]) -> MissingInput:
    """Return the question what the names of a chart's runs mean. The example makes an arm of each run."""
    names = some([short(printable(run.name)) for run in runs], MAX_LEFT_OUT)
    question = (
        f"groups: {runs[0].paths[0]} has {plural(len(runs), 'run')} ({names}): say with --run-name PATTERN "
        "what their names mean, such as '{arm}-{seed}' or '{arm}_lr_{lr}_*'; with '{arm}', "
        "each run is an arm"
    )
    return MissingInput([question], ["--run-name", "{arm}"])


def _identify(run: RunRecord) -> tuple[Any, ...]:
    """Return a value that is the same for one run in two arms, by its files or its place on the server."""
    if not run.paths:
        return run.entity, run.project, run.id
    # The id as well: a table that was exported from a chart holds several runs.
    return *(path.resolve() for path in run.paths), Path(run.id).resolve()


def _load_arm(sources: Sequence[str], options: ReadingOptions, arm: str) -> list[RunRecord]:
    """Return the runs of the sources of one arm, oldest first."""
    server_sources = [source for source in sources if source.startswith(API_PREFIX)]
    for source in server_sources:
        parse_source(source)  # check all sources before reading
    local_sources = [source for source in sources if source not in server_sources]
    named_files = {Path(source).resolve() for source in local_sources if os.path.isfile(source)}
    runs = _with_settings_of_names(_read_folders(local_sources, options, arm), options, arm)
    runs = unite_files(runs, arm, named_files)
    for source in server_sources:
        for run in _with_settings_of_names(read_server(source), options, arm):
            _add_server_run(runs, run)
    runs = _leave_out_old(runs)
    return sorted(runs, key=lambda run: (run.started_at.timestamp() if run.started_at else math.inf, run.id))


def _leave_out_old(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs without those of versions before 0.3 whose options went, and log the others.

    Raises:
        UserError: None is left.
    """
    readable = []
    left_out = []
    for run in runs:
        option = _option_before_0_3(run)
        if option:
            left_out.append(
                f"{run.name} ({run.id}): left out: {option} is of a version before 0.3; "
                "AMP Compare 0.4 reads this record"
            )
        else:
            readable.append(run)
    if left_out and not readable:
        rest = f", and {len(left_out) - 1:,} more like it" if left_out[1:] else ""
        raise UserError(f"{left_out[0]}{rest}; no run is left to read")
    _warn(left_out, "runs that were left out, too")
    return readable


def _warn(lines: Sequence[str], more: str) -> None:
    """Log the first lines, and how many there are more."""
    for line in lines[:MAX_LEFT_OUT]:
        log.warning(one_line(line))
    if len(lines) > MAX_LEFT_OUT:
        log.warning(one_line(f"{more}: {len(lines) - MAX_LEFT_OUT:,}"))


def _option_before_0_3(run: RunRecord) -> str:
    """Return an option of the run with its value that version 0.3 did not have, "" without one."""
    if not run.is_own_training:
        return ""
    for key in ("precision.dtype", "precision.enabled"):
        if (value := run.option(key)) is not None:
            return f"{key}={value}"
    is_tf32 = run.option("backend") == "none" and run.option("tf32") is True
    return "backend=none tf32=true" if is_tf32 else ""


def _add_server_run(runs: list[RunRecord], new: RunRecord) -> None:
    """Add a run from the server unless the same run on disk has as many rows."""
    for number, known in enumerate(runs):
        if _is_same_run(known, new):
            if new.rows > known.rows:
                runs[number] = new
            return
    runs.append(new)


def _is_same_run(one: RunRecord, other: RunRecord) -> bool:
    """Return whether two records with the same id are of one project and entity, as far as both know them."""
    if one.id != other.id:
        return False
    is_other_project = one.project and other.project and one.project != other.project
    is_other_entity = one.entity and other.entity and one.entity != other.entity
    return not is_other_project and not is_other_entity


def _read_folders(sources: Sequence[str], options: ReadingOptions, arm: str) -> list[RunRecord]:
    """Return the runs of the folders and files of one arm; "" if the arms have no names."""
    reader = _SourceReader(options)
    parts: list[RunRecord] = []
    refused: list[UserError] = []
    for source in sources:
        try:
            parts += reader.read(source)
        except NoRecordError as error:
            refused.append(error)
    reader.close()
    of_arm = f" of {arm}" if arm else ""
    for kind, count in reader.runs_of_kind.items():
        log.info(
            f"read {plural(count, 'run')}{of_arm} from {kind}; these files do not say whether a run finished"
        )
    if refused and not parts:
        raise refused[0]
    _warn([f"left out: {problem}" for problem in refused], "files without a run that were left out, too")
    return [_join_parts(parts_of_run) for parts_of_run in _group_by_run(parts)]


def _join_parts(parts: Sequence[RunRecord]) -> RunRecord:
    """Return the parts of a run as one run. Tables of one run have its metrics; none continues another."""
    are_tables = all(path.suffix.lower() == ".csv" for part in parts for path in part.paths)
    if are_tables and len(parts) > 1:
        return join_rows(parts)
    return merge_parts(parts)


class _SourceReader:
    """Reads the parts of runs in folders and files, each file once.

    Attributes:
        options: What the user says about tables.
        runs_of_kind: How many runs were read from each kind of log of other programs.
    """

    def __init__(self, options: ReadingOptions) -> None:
        self.options = options
        self.runs_of_kind: Counter[str] = Counter()
        self._read: set[str] = set()  # real paths of files

    @cached_property
    def _memory(self) -> Any:
        return open_cache("runs")

    def close(self) -> None:
        """Trim the cache if it was used."""
        if "_memory" in vars(self):
            trim_cache(self._memory, MAX_CACHE_SIZE)

    def read(self, source: str) -> list[RunRecord]:
        """Return the parts of runs in one folder or file.

        A program may log one run in several formats. So the first kind that has a run is read; the next kind
        is read in folders whose files of the first kind have none. What was read, left out, or also there is
        logged.

        Raises:
            NoRecordError: The source is a `.wandb` file without a record.
            UserError: The source is another file or a folder without a run, or cannot be read.
        """
        discovery = discover(source, self.options)
        real_paths = {os.path.realpath(path) for paths in discovery.files.values() for path in paths}
        parts: list[RunRecord] = []
        first_kind = ""  # the first kind that has a run
        folders_without_run: set[Path] = set()
        for kind in KINDS:
            files = discovery.files.get(kind, [])
            wanted = [path for path in files if not first_kind or path.parent in folders_without_run]
            paths = [path for path in wanted if os.path.realpath(path) not in self._read]
            with_runs, without_runs = self._read_kind(kind, paths)
            discovery.left_out += [(part.paths[0], _why_no_run(part, kind)) for part in without_runs]
            if with_runs and kind != WANDB:
                self.runs_of_kind[kind] += len(with_runs)
            unread = len(files) - len(paths)
            if first_kind and unread:
                are_files = "is 1 file" if unread == 1 else f"are {unread:,} files"
                message = (
                    f"{source}: read {first_kind}; there {are_files} of {kind} too, "
                    "not read: name their folder or file for it"
                )
                log.info(one_line(message))
            parts += with_runs
            folders_without_run |= _folders_of(without_runs)
            folders_without_run -= _folders_of(with_runs)
            if with_runs and not first_kind:
                first_kind = kind
        if not parts and not real_paths & self._read:
            raise nothing_found(source, discovery)
        _warn_of_files_not_read(source, discovery)
        self._read |= real_paths
        return parts

    def _read_kind(self, kind: str, paths: Sequence[Path]) -> tuple[list[RunRecord], list[RunRecord]]:
        """Return the parts of runs in files of one kind, and the parts without a run."""
        if not paths:
            return [], []
        readers: Mapping[str, Callable[[Sequence[Path]], list[RunRecord]]] = {
            WANDB: lambda paths: read_wandb_files(paths, self._memory),
            EVENTS: read_event_files,
            TABLES: lambda paths: join_exports(read_tables(paths, self.options, are_lines=False)),
            STATES: read_trainer_states,
            LINES: partial(read_tables, options=self.options, are_lines=True),
        }
        parts = readers[kind](paths)
        if kind == WANDB and any(part.rows or part.is_named for part in parts):
            return parts, []  # a damaged W&B file is still a run that started
        return [part for part in parts if part.rows], [part for part in parts if not part.rows]


def _why_no_run(part: RunRecord, kind: str) -> str:
    if part.problems:
        return " ".join(part.problems)
    return "it holds no run record" if kind == WANDB else "it holds no value"


def _folders_of(parts: Iterable[RunRecord]) -> set[Path]:
    return {path.parent for part in parts for path in part.paths}


def _warn_of_files_not_read(source: str, discovery: Discovery) -> None:
    for program, folder in discovery.programs.items():
        log.warning(one_line(f"{folder}: not read: a folder of {program}; {EXPORT} ({EXPORT_HELP})"))
    left_out = [f"{path}: left out: {problem}" for path, problem in discovery.left_out]
    _warn(left_out, f"{source}: files that were left out, too")


def _group_by_run(parts: Iterable[RunRecord]) -> Iterator[list[RunRecord]]:
    """Yield the parts of each run: the same id and, if known, the same project."""
    by_id: dict[str, list[RunRecord]] = {}
    for part in parts:
        by_id.setdefault(part.id, []).append(part)
    for parts_of_id in by_id.values():
        # Two runs may share an id by chance. A part without its beginning belongs to the last of them.
        named = [part for part in parts_of_id if part.is_named]
        by_project: dict[str, list[RunRecord]] = {part.project: [] for part in named} or {"": []}
        last_project = list(by_project)[-1]
        for part in parts_of_id:
            by_project[part.project if part.is_named else last_project].append(part)
        yield from by_project.values()
