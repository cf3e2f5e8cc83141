"""`ampcompare sweep` as it was given: what begins a sweep, and what continues it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from ampcompare.errors import UserError
from ampcompare.runs.wandb_api import API_PREFIX
from ampcompare.runtime.paths import find_shipped, shell_command
from ampcompare.sweeps.journal import DEFINITION_FILE, read_journal
from ampcompare.sweeps.sweep_file import key_of


@dataclass(frozen=True)
class SweepOptions:
    """Options of `ampcompare sweep`, without the file and the overrides for its runs.

    Attributes:
        workers: Number of runs at a time.
        name: Name of the sweep, in place of the file's.
        control: `bookends`, `chaos`, or `none`.
        until_decided: Whether seeds are added until each claim is decided.
        cluster: `slurm` or `ray`; None runs on this machine.
        wait: Whether the driver stays until a job array has ended.
        rerun: Whether to make new runs of what is neither finished nor running.
        bench: A file of `ampcompare bench --json` with the speed, for the report and the planned time.
        seeds_per_process: How many seeds one process trains, one after the other; None: one.
    """

    workers: int | None = None
    name: str | None = None
    control: str | None = None
    until_decided: bool = False
    cluster: str | None = None
    wait: bool = False
    rerun: bool = False
    bench: str | None = None
    seeds_per_process: int | None = None


DEFAULT_OPTIONS = SweepOptions()


@dataclass(frozen=True)
class SweepCommand:
    """A command of a sweep.

    Attributes:
        file: The sweep file as it was named.
        overrides: All `key=value` words, options of a cluster included.
    """

    file: str = ""
    overrides: tuple[str, ...] = ()
    options: SweepOptions = DEFAULT_OPTIONS

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the command that `data` returned."""
        return cls(data["file"], tuple(data["overrides"]), SweepOptions(**data["options"]))

    def data(self) -> dict[str, Any]:
        """Return the command in types that JSON has."""
        return asdict(self)

    def text(self, *flags: str) -> str:
        """Return the command as it is typed.

        Args:
            *flags: Further options without a value, such as `--status`.
        """
        options = {f"--{name.replace('_', '-')}": value for name, value in asdict(self.options).items()}
        words = dict.fromkeys([*flags, *(flag for flag, value in options.items() if value is True)])
        if "--rerun" in words:  # it adds no seeds
            words.pop("--until-decided", None)
        values = [
            f"{option}={value}"
            for option, value in options.items()
            if value is not None and not isinstance(value, bool)  # 1 is a value
        ]
        return shell_command("ampcompare", "sweep", self.file, *words, *values, *self.overrides)


def command_of_folder(folder: str, given: SweepCommand) -> SweepCommand:
    """Return the command of the sweep in a folder.

    Args:
        folder: The output folder of a sweep.
        given: The command line. Its overrides and the options that it sets replace recorded ones.

    Raises:
        UserError: There is no sweep in the folder, or its file is not here.
    """
    state = read_journal(Path(folder))
    if state is None:
        raise UserError(
            f"{folder}: no sweep has begun in this folder, it has no {DEFINITION_FILE}; "
            "name the folder of a sweep, such as runs/compare_backends, or a sweep file"
        )
    recorded = SweepCommand.of_data(state.command)
    if not recorded.file.startswith(API_PREFIX) and not find_shipped(recorded.file, "sweeps"):
        raise UserError(
            f"{folder}: its sweep file {recorded.file} is not in {Path.cwd()}; "
            f"go to the folder in which the sweep was started with: {recorded.text()}"
        )
    by_key = {key_of(override): override for override in recorded.overrides}
    output = Path(by_key.get("output_dir", f"=runs/{state.name}").partition("=")[2])
    if output.resolve() != Path(folder).resolve():  # the folder was moved, or this is another one
        by_key["output_dir"] = f"output_dir={folder}"
    by_key |= {key_of(override): override for override in given.overrides}
    chosen = {name: value for name, value in asdict(given.options).items() if value}
    options = replace(recorded.options, **chosen)
    return SweepCommand(recorded.file, tuple(by_key.values()), options)
