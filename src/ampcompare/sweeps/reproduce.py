"""Publications as sweeps: their list, and the sweep file of each, a grid of its arms and seeds."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ampcompare.config.load import config_from_cli
from ampcompare.config.publication_config import arm_config
from ampcompare.data.sources import SOURCES
from ampcompare.publications.publication import Publication, list_publications, load_publication
from ampcompare.runtime.formatting import listed, plural
from ampcompare.sweeps.sweep_file import key_of

H100_FP32 = 66.9e12  # operations a second at most, by NVIDIA's data sheet (SXM)
REACHED = 0.4  # share of the peak that a training reaches which does not wait for data; a rough figure
UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
VARIED = ("published.arm", "seed")  # words change their values, as of any sweep
HEAD = """\
# {about}
# as ampcompare reproduce runs it; the setting of each arm is in the publication's file
# Without server:  ampcompare sweep {file}
# With W&B:        wandb sweep {file}, then on each GPU: wandb agent ENTITY/PROJECT/ID
#                  ampcompare reproduce {name} --runs wandb:ENTITY/PROJECT/ID
"""


def lines(seeds: int) -> Iterator[str]:
    """Yield the lines that list all publications, with the time of so many seeds of each arm."""
    for name in list_publications():
        own = load_publication(name)
        printed = [f"{figure.kind.label} ({figure.name})" for figure in own.figures]
        curves = [f"the curve of {key}" for key in own.curves]
        yield f"{name}: {own.title}"
        yield f"  shows:  {listed([*printed, *curves])}"
        yield f"  arms:   {listed(own.arms)}" + (f", beside {own.baseline}" if len(own.arms) > 1 else "")
        yield f"  data:   {_data(arm_config(own).data.source)}"
        yield f"  source: {', '.join(filter(None, [own.source, own.date, own.hardware]))}"
        yield f"  time:   {_time(own, seeds)}"
        yield ""
    whose = f"of {plural(seeds, 'seed')} of every arm, one after the other on one card"
    how = f"counted work at {REACHED:.0%} of its peak in fp32, whatever the arm; evaluation is not in it"
    yield f"Times are {whose}. For an H100 they are estimates: {how}."


def _data(name: str) -> str:
    if (source := SOURCES.get(name)) is None:
        return f"made by {name}"
    return source.label if source.is_synthetic else f"{source.label}, downloaded once"


def _time(own: Publication, seeds: int) -> str:
    """Return the time of so many runs of every arm, as text.

    It is estimated from the work, each arm as if it were fp32, and given by the publication's own times where
    it has any.
    """
    configs = {arm: arm_config(own, arm) for arm in own.arms}
    images = {arm: (c.data.train_limit or own.images or 0) * c.epochs for arm, c in configs.items()}
    here = (own.gflop or 0.0) * 1e9 * sum(images.values()) / (H100_FP32 * REACHED)
    estimate = f"about {_in_words(seeds * here)} on an H100"
    for figure in own.figures:
        if figure.kind.is_time and figure.values.keys() == own.arms.keys():
            there = sum(
                images[arm] / printed.value
                if figure.measured == "images_per_second"
                else printed.value * (configs[arm].epochs if figure.measured == "seconds_per_epoch" else 1)
                for arm, printed in figure.values.items()
            )
            card = own.hardware or "their machine"
            return f"{_in_words(seeds * there)} on {card}, by their figures; {estimate}"
    return estimate


def _in_words(seconds: float) -> str:
    """Return a time with two digits, such as `3.4 h` or `12 min`."""
    unit, size = next((pair for pair in UNITS if seconds >= pair[1]), UNITS[-1])
    return f"{float(f'{seconds / size:.2g}'):g} {unit}"


def sweep_file(
    name: str,
    seeds: int = 3,
    scale: float = 1.0,
    network: str | None = None,
    words: Sequence[str] = (),
    file: str | None = None,
) -> tuple[str, str]:
    """Return the name and the text of the sweep file that runs a publication.

    Args:
        name: Name of the publication.
        seeds: Number of runs of each arm.
        scale: Share of its epochs, images and batch size, for a quick try.
        network: Another network, for a quick try.
        words: `key=value` words for every run.
        file: Name of the sweep file if it is kept; its command then has the words.

    Raises:
        UserError: For an arm that the training does not take.
    """
    import yaml

    own = load_publication(name)
    arms = sorted(own.arms, key=lambda arm: arm != own.baseline)  # a sweep takes the first for the baseline
    fixed: dict[str, Any] = {"published.name": name}
    fixed |= {"published.scale": scale} if scale != 1 else {}
    fixed |= {"published.network": network} if network else {}
    given = [f"{key}={value}" for key, value in fixed.items()]
    given += [word for word in words if key_of(word) not in VARIED]
    first, *_ = [config_from_cli([*given, f"published.arm={arm}"]) for arm in arms]
    # A name that can be a folder's, and differs for another scale or network.
    parts = ["reproduce", own.name, f"scale-{scale:g}" if scale != 1 else "", network or ""]
    called = re.sub(r"[^\w.-]+", "-", "-".join(filter(None, parts)))
    values = {"values": arms}, {"values": [first.seed + number for number in range(seeds)]}
    begin = ["${env}", "${interpreter}", "-m", "${program}", "run", "resume=auto"]
    content = {
        "program": "ampcompare",
        "project": first.wandb.project,
        "name": called,
        "method": "grid",
        "parameters": {k: {"value": v} for k, v in fixed.items()} | dict(zip(VARIED, values, strict=True)),
        "command": [*begin, *(words if file else ()), "${args_no_hyphens}"],
    }
    about = " ".join(f"{own.title}: {own.source} {own.url}".split())
    head = HEAD.format(about=about, file=file or "sweep.yaml", name=name)
    return called, head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
