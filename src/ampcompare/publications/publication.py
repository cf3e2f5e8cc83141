"""A publication: a published comparison in our option names, and its results as they were printed.

title: ...            # what was compared
source: ...           # who printed it, and where; also url, date, hardware (by its driver), software, note
runs: 1               # per arm
setting: {model.name: ..., data.source: ..., epochs: 20}       # what all arms share, in our option names
tiny: {model.kwargs.width: 64}  # for --network tiny, instead of our tiny network; also data options
images: 50000         # per epoch: what `scale` shrinks (default: what the source has)
baseline: fp32        # one of the arms
arms:                 # by their published names
  fp32: {backend: none}
  O3: {backend: fp16, precision.loss_scale: 1}
figures:              # by names of your choice; `unit` is that of the texts, if not that of MEASUREMENTS
  epoch_seconds: {measured: seconds_per_epoch, unit: s, what: ..., values: {fp32: "17.84", O3: "10.30"}}
curves: [eval/accuracy]  # metrics that were published as a curve only
gflop: 7.78           # counted work of forward and backward per image
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ampcompare.errors import UserError, did_you_mean, one_line
from ampcompare.publications.printed_value import PrintedValue
from ampcompare.runtime.paths import find_shipped, list_shipped
from ampcompare.runtime.strict_model import Above0, StrictModel, parse_model, validation_error
from ampcompare.runtime.yaml_io import flatten, read_yaml

FOLDER = "configs/published"
MAX_ARMS = 20
MAX_NAME_CHARS = 60


@dataclass(frozen=True)
class MeasurementKind:
    """A kind of measurement that publications report.

    Attributes:
        column: Its name in the report's table of runs.
        label: Its name in tables.
        unit: The unit in which it is compared. `unit` in a file is that of the printed text.
        is_time: Whether it is a time or a speed, which differ between machines.
    """

    column: str
    label: str
    unit: str
    is_time: bool = False

    @property
    def is_percentage(self) -> bool:
        """Return whether it is shown in percent."""
        return self.unit == "%"

    @property
    def is_duration(self) -> bool:
        """Return whether it is a time of which less is better, so that its inverse is a speed."""
        return self.is_time and self.unit == "s"


MEASUREMENTS = {
    "seconds": MeasurementKind("train_seconds", "training time", "s", is_time=True),
    "seconds_in_all": MeasurementKind("seconds_in_all", "time with evaluations", "s", is_time=True),
    "seconds_per_epoch": MeasurementKind("seconds_per_epoch", "time of an epoch", "s", is_time=True),
    "images_per_second": MeasurementKind("images_per_second", "throughput", "images/s", is_time=True),
    "peak_memory": MeasurementKind("peak_mib", "peak memory", "MiB"),
    "final_accuracy": MeasurementKind("final_accuracy", "accuracy after the last epoch", "%"),
    "best_accuracy": MeasurementKind("best_accuracy", "best accuracy", "%"),
}
# Factors from units in files to the unit of a measurement.
UNITS: dict[str, dict[str, float]] = {
    "s": {"s": 1.0, "min": 60.0, "h": 3600.0},
    "images/s": {"images/s": 1.0},
    "MiB": {"MiB": 1.0, "bytes": 2.0**-20},
    "%": {"%": 1.0, "fraction": 100.0},
}


def _read_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        raise validation_error("expected a text")
    return one_line(value)


def _name(name: str) -> str:
    """Check a name: it stands in tables, and the name of an arm on command lines."""
    if name != one_line(name) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise validation_error(f"expected a name of 1 to {MAX_NAME_CHARS} characters, in one line")
    return name


Text = Annotated[str, PlainValidator(_read_text)]
Name = Annotated[str, AfterValidator(_name)]
# Options of a run by dotted key, from a nested or flat mapping. Their names are checked when they are used.
RunOptions = Annotated[
    dict[str, Any],
    BeforeValidator(lambda tree: {} if tree is None else tree),
    AfterValidator(lambda tree: dict(flatten(tree))),
]
Count = Annotated[int, Field(ge=1)]


class PublishedMetric(StrictModel):
    """The printed values of one measurement.

    Attributes:
        measured: A key of MEASUREMENTS.
        unit: The unit of the printed texts.
        values: The value of each arm, in the unit of `measured`.
        name: Its name in the file.
    """

    measured: Literal[*MEASUREMENTS]  # type: ignore[valid-type]
    unit: str = ""
    values: Annotated[dict[str, PrintedValue], Field(min_length=1)]
    what: Text = ""
    name: str = ""

    @property
    def kind(self) -> MeasurementKind:
        """The kind of measurement."""
        return MEASUREMENTS[self.measured]

    @property
    def factor(self) -> float:
        """Factor from the unit of the texts to the unit of `values`: 60 for minutes."""
        return UNITS[self.kind.unit][self.unit or self.kind.unit]

    @field_validator("unit")
    @classmethod
    def _fits(cls, unit: str, info: ValidationInfo) -> str:
        measured = info.data.get("measured")
        if not unit or not measured:  # the other error is reported
            return unit
        units = UNITS[MEASUREMENTS[measured].unit]
        if unit not in units:
            raise validation_error(f"expected one of {', '.join(units)}, which fit {measured}")
        return unit

    def as_named(self, name: str) -> Self:
        """Return the same under this name, with values in the unit of `measured`."""
        ends = ("value", "low", "high")
        values = {
            arm: printed.model_copy(update={end: getattr(printed, end) * self.factor for end in ends})
            for arm, printed in self.values.items()
        }
        unit = self.unit or self.kind.unit
        return self.model_copy(update={"name": name, "unit": unit, "values": values})


_FIGURES = TypeAdapter(dict[Name, PublishedMetric])


def _figures(content: Any) -> tuple[PublishedMetric, ...]:
    return tuple(metric.as_named(name) for name, metric in _FIGURES.validate_python(content).items())


class Publication(StrictModel):
    """A publication; the module's docstring describes the fields."""

    title: Text
    source: Text
    url: Text = ""
    date: Text = ""
    hardware: Text = ""
    software: Text = ""
    note: Text = ""
    runs: Count = 1
    images: Count | None = None
    gflop: Above0 | None = None
    setting: RunOptions = Field(default_factory=dict)
    tiny: RunOptions = Field(default_factory=dict)
    baseline: str
    arms: Annotated[dict[Name, RunOptions], Field(min_length=1, max_length=MAX_ARMS)]
    figures: Annotated[tuple[PublishedMetric, ...], BeforeValidator(_figures)] = ()
    curves: list[str] = Field(default_factory=list)
    name: str = ""  # the name of its file
    path: Path = Path()

    @property
    def arm_keys(self) -> tuple[str, ...]:
        """Every key that an arm sets, in the order of the file."""
        return tuple(dict.fromkeys(key for arm in self.arms.values() for key in arm))

    @model_validator(mode="after")
    def _names_its_arms(self) -> Self:
        arms = ", ".join(self.arms)
        if self.baseline not in self.arms:
            raise validation_error(f"baseline={self.baseline!r}: expected one of the arms: {arms}")
        for metric in self.figures:
            for arm in metric.values.keys() - self.arms.keys():
                raise validation_error(
                    f"figures.{metric.name}.values.{arm}: no such arm; expected one of {arms}"
                )
        return self


def list_publications() -> list[str]:
    """Return the names of the shipped publications."""
    return list_shipped(FOLDER)


def load_publication(name: str) -> Publication:
    """Return the publication of that name, or the one in that YAML file.

    Raises:
        UserError: There is no such publication, or its file has mistakes; one line for each.
    """
    path = None
    with suppress(OSError, ValueError):  # too long, contains NUL, or not permitted
        path = find_shipped(name, FOLDER)
    if path is None:
        names = list_publications()
        hint = did_you_mean(name, names) or f"expected a file or one of {', '.join(names)}"
        raise UserError(f"{name!r}: no such publication; {hint}")
    publication = parse_model(Publication, read_yaml(path), path)
    return publication.model_copy(update={"name": path.stem, "path": path})
