"""A publication: what somebody compared, in our own keys, and what came out of it, as it was printed.

title: ...            # what was compared
source: ...           # who printed it, and where; also url, date, hardware (by its driver), software, note
runs: 1               # of each arm, there
setting: {model.name: ..., data.source: ..., epochs: 20}       # what all arms share, in our own keys
tiny: {model.kwargs.width: 64}  # of --network tiny, instead of our network of that name; of data, beside it
images: 50000         # of an epoch there: what `scale` shrinks (left out: what the source has)
baseline: fp32        # one of the arms
arms:                 # by their names there
  fp32: {backend: none}
  O3: {backend: fp16, precision.loss_scale: 1}
figures:              # by names of its own; `unit` is that of the texts, where it is not MEASURED's
  epoch_seconds: {measured: seconds_per_epoch, unit: s, what: ..., values: {fp32: "17.84", O3: "10.30"}}
curves: [eval/accuracy]  # metrics of which a curve alone was drawn
gflop: 7.78           # counted work of forward and backward, an image
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
    """A measurement that publications give: how ours is named, its unit, whether less of it is better, and
    whether it is one of time, which other hardware has otherwise.
    """

    label: str
    unit: str
    lower_is_better: bool
    is_time: bool = False
    is_percentage: bool = False  # in the file as a fraction or in percent, which `unit` of the figure says


MEASUREMENTS = {
    "seconds": MeasurementKind("training time", "s", lower_is_better=True, is_time=True),
    "seconds_in_all": MeasurementKind("time with evaluations", "s", lower_is_better=True, is_time=True),
    "seconds_per_epoch": MeasurementKind("time of an epoch", "s", lower_is_better=True, is_time=True),
    "images_per_second": MeasurementKind("throughput", "images/s", lower_is_better=False, is_time=True),
    "peak_memory": MeasurementKind("peak memory", "MiB", lower_is_better=True),
    "final_accuracy": MeasurementKind(
        "accuracy after the last epoch", "%", lower_is_better=False, is_percentage=True
    ),
    "best_accuracy": MeasurementKind("best accuracy", "%", lower_is_better=False, is_percentage=True),
}
# Units of a file by the one that they come to.
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
    """It stands in tables, and an arm's on command lines."""
    if name != one_line(name) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise validation_error(f"expected a name of 1 to {MAX_NAME_CHARS} characters, in one line")
    return name


Text = Annotated[str, PlainValidator(_read_text)]
Name = Annotated[str, AfterValidator(_name)]
# Options of a run by dotted key, of a nested or flatten tree; whether there are such is for who runs it.
RunOptions = Annotated[
    dict[str, Any],
    BeforeValidator(lambda tree: {} if tree is None else tree),
    AfterValidator(lambda tree: dict(flatten(tree))),
]
Count = Annotated[int, Field(ge=1)]


class PublishedMetric(StrictModel):
    """What was printed of each arm: `values` by arm, in the unit of `measured` (s, images/s, MiB, %). `unit`
    is the one that their texts are in.
    """

    measured: Literal[*MEASUREMENTS]  # type: ignore[valid-type]
    unit: str = ""
    values: Annotated[dict[str, PrintedValue], Field(min_length=1)]
    what: Text = ""
    name: str = ""  # by which the file calls it

    @property
    def kind(self) -> MeasurementKind:
        """What is measured."""
        return MEASUREMENTS[self.measured]

    @property
    def factor(self) -> float:
        """From the unit of their texts to that of `values`: 60 of minutes."""
        return UNITS[self.kind.unit][self.unit or self.kind.unit]

    @field_validator("unit")
    @classmethod
    def _fits(cls, unit: str, info: ValidationInfo) -> str:
        measured = info.data.get("measured")
        if unit and measured and unit not in (units := UNITS[MEASUREMENTS[measured].unit]):
            raise validation_error(f"expected one of {', '.join(units)}, which fit {measured}")
        return unit

    def as_named(self, name: str) -> Self:
        """The same under this name, its values in the unit of `measured`."""
        ends = ("value", "low", "high")
        values = {
            arm: one.model_copy(update={end: getattr(one, end) * self.factor for end in ends})
            for arm, one in self.values.items()
        }
        unit = self.unit or self.kind.unit
        return self.model_copy(update={"name": name, "unit": unit, "values": values})


_FIGURES = TypeAdapter(dict[Name, PublishedMetric])


def _figures(content: Any) -> tuple[PublishedMetric, ...]:
    return tuple(figure.as_named(name) for name, figure in _FIGURES.validate_python(content).items())


class Publication(StrictModel):
    """See the module."""

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
    name: str = ""  # that of its file
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
        for figure in self.figures:
            for arm in figure.values.keys() - self.arms.keys():
                raise validation_error(f"figures.{figure.name}.values.{arm}: no such arm; there are {arms}")
        return self


def list_publications() -> list[str]:
    """The publications that come with the tool."""
    return list_shipped(FOLDER)


def load_publication(name: str) -> Publication:
    """The publication of that name, or of the YAML file. Raises UserError with a line for each mistake."""
    path = None
    with suppress(OSError, ValueError):  # a name too long, a NUL in it, no right to look
        path = find_shipped(name, FOLDER)
    if path is None:
        near = (
            did_you_mean(name, list_publications())
            or f"expected a file or one of {', '.join(list_publications())}"
        )
        raise UserError(f"{name!r}: no such publication; {near}")
    found = parse_model(Publication, read_yaml(path), path)
    return found.model_copy(update={"name": path.stem, "path": path})
