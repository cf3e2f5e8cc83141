"""The list of publications: what each shows, what it needs, about how long it takes."""

from __future__ import annotations

from collections.abc import Iterator

from ampcompare.config.publication import arm_config
from ampcompare.config.schema import Config
from ampcompare.data.sources import SOURCES
from ampcompare.errors import UserError
from ampcompare.published.publication import Publication, load, names
from ampcompare.report.words import listed, plural

H100_FP32 = 66.9e12  # operations a second at most, by NVIDIA's data sheet (SXM)
REACHED = 0.4  # of the peak, by a training that is not held up by its data: of an order, not a measurement
UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))


def lines(seeds: int) -> Iterator[str]:
    """A block of lines for each publication, with the time of that many seeds."""
    for name in names():
        try:
            yield from _block(load(name), seeds)
        except UserError as problem:
            yield f"{name}: {problem}"
        yield ""
    whose = f"of {plural(seeds, 'seed')} of every arm, one after the other on one card"
    how = f"counted work at {REACHED:.0%} of its peak in fp32, whatever the arm; evaluation is not in it"
    yield f"Times are {whose}. For an H100 they are estimates: {how}."


def _block(publication: Publication, seeds: int) -> Iterator[str]:
    shared = arm_config(publication)
    printed = [f"{figure.kind.words} ({figure.name})" for figure in publication.figures]
    curves = [panel.curve for chart in publication.charts for panel in chart.panels if panel.curve]
    there = [publication.source, publication.date, publication.hardware]
    beside = f", beside {publication.baseline}"
    told = {
        "shows": listed([*printed, *(f"the curve of {key}" for key in curves)]) or "its setting alone",
        "arms": listed([*publication.arms]) + (beside if len(publication.arms) > 1 else ""),
        "data": _data(shared),
        "source": ", ".join(part for part in there if part),
        "time": _time(publication, seeds),
    }
    yield f"{publication.name}: {publication.title}"
    yield from (f"  {word + ':':<8}{text}" for word, text in told.items())


def _data(config: Config) -> str:
    name = config.data.source
    if name not in SOURCES:
        return f"made by {name}"
    source = SOURCES[name]
    if source.needs_root:
        return f"{source.label}, one's own: data.root=PATH, a {source.root}"
    return source.label if source.is_made_up else f"{source.label}, downloaded once"


def _time(publication: Publication, seeds: int) -> str:
    there, here = seconds_there(publication), forecast(publication)
    card = publication.hardware or "their machine"
    told = [f"{in_words(seeds * there)} on {card}, by their figures"] if there else []
    told += [f"about {in_words(seeds * here)} on an H100"] if here else []
    return "; ".join(told) or "not known: its file has no gflop, or not how many images"


def seconds_there(publication: Publication) -> float | None:
    """Seconds of one run of every arm by the publication's own figures; None where it has none of time."""
    for figure in publication.figures:
        if set(figure.values) == set(publication.arms) and figure.kind.is_time:
            times = [
                _run_seconds(publication, arm, figure.measured, v.value) for arm, v in figure.values.items()
            ]
            return None if None in times else sum(time for time in times if time)
    return None


def _run_seconds(publication: Publication, arm: str, measured: str, value: float) -> float | None:
    config = arm_config(publication, arm)
    if measured == "images_per_second":
        images = _images(publication, config)
        return images * config.epochs / value if images and value > 0 else None
    return value * config.epochs if measured == "seconds_per_epoch" else value


def forecast(publication: Publication) -> float | None:
    """Seconds of one run of every arm on an H100, each as if it were fp32; None: its work is not counted."""
    configs = [arm_config(publication, arm) for arm in publication.arms]
    counts = [_images(publication, config) * config.epochs for config in configs]
    if publication.gflop is None or not all(counts):
        return None
    return publication.gflop * 1e9 * sum(counts) / (H100_FP32 * REACHED)


def _images(publication: Publication, config: Config) -> int:
    """Of an epoch; 0 where that is not known."""
    source = SOURCES.get(config.data.source)
    return config.data.train_limit or publication.images or (source.train_images if source else 0)


def in_words(seconds: float) -> str:
    """`3.4 h`, `12 min`: two digits, which is more than an estimate has."""
    unit, size = next((pair for pair in UNITS if seconds >= pair[1]), UNITS[-1])
    return f"{float(f'{seconds / size:.2g}'):g} {unit}"
