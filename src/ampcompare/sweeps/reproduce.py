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
REACHED_FRACTION = 0.4  # rough fraction of the peak that a training reaches if it does not wait for data
UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
VARIED = ("published.arm", "seed")  # overrides change their values, as in any sweep
HEAD = """\
# {about}
# the sweep of ampcompare reproduce; the publication's file has the setting of each arm
# Without server:  ampcompare sweep {file}
# With W&B:        wandb sweep {file}, then on each GPU: wandb agent ENTITY/PROJECT/ID
#                  ampcompare reproduce {name} --runs wandb:ENTITY/PROJECT/ID
"""


def describe_publications(seeds: int) -> Iterator[str]:
    """Yield the lines of a list of all publications.

    Args:
        seeds: Number of seeds of each arm, for the estimated time.
    """
    for name in list_publications():
        publication = load_publication(name)
        printed = [f"{figure.kind.label} ({figure.name})" for figure in publication.figures]
        curves = [f"the curve of {key}" for key in publication.curves]
        yield f"{name}: {publication.title}"
        yield f"  shows:  {listed([*printed, *curves])}"
        baseline = f", beside {publication.baseline}" if len(publication.arms) > 1 else ""
        yield f"  arms:   {listed(publication.arms)}{baseline}"
        yield f"  data:   {_data(arm_config(publication).data.source)}"
        origin = [publication.source, publication.date, publication.hardware]
        yield f"  source: {', '.join(filter(None, origin))}"
        yield f"  time:   {_time(publication, seeds)}"
        yield ""
    basis = f"of {plural(seeds, 'seed')} of every arm, one after the other on one card"
    work = f"counted work at {REACHED_FRACTION:.0%} of its peak in fp32, whatever the arm"
    method = f"{work}; evaluation is not in it"
    yield f"Times are {basis}. For an H100 they are estimates: {method}."


def _data(name: str) -> str:
    if (source := SOURCES.get(name)) is None:
        return f"made by {name}"
    return source.label if source.is_synthetic else f"{source.label}, downloaded once"


def _time(publication: Publication, seeds: int) -> str:
    """Return the time of the runs of every arm, as text.

    The estimate is based on the work, with every arm in fp32. If the publication has times, they come first.
    """
    configs = {arm: arm_config(publication, arm) for arm in publication.arms}
    images = {arm: (c.data.train_limit or publication.images or 0) * c.epochs for arm, c in configs.items()}
    estimated = (publication.gflop or 0.0) * 1e9 * sum(images.values()) / (H100_FP32 * REACHED_FRACTION)
    estimate = f"about {_format_time(seeds * estimated)} on an H100"
    for figure in publication.figures:
        if figure.kind.is_time and figure.values.keys() == publication.arms.keys():
            published = sum(
                images[arm] / printed.value
                if figure.measured == "images_per_second"
                else printed.value * (configs[arm].epochs if figure.measured == "seconds_per_epoch" else 1)
                for arm, printed in figure.values.items()
            )
            card = publication.hardware or "their machine"
            return f"{_format_time(seeds * published)} on {card}, by their figures; {estimate}"
    return estimate


def _format_time(seconds: float) -> str:
    """Return a time with two digits, such as `3.4 h` or `12 min`."""
    unit, size = next((pair for pair in UNITS if seconds >= pair[1]), UNITS[-1])
    return f"{float(f'{seconds / size:.2g}'):g} {unit}"


def sweep_file(
    name: str,
    seeds: int = 3,
    scale: float = 1.0,
    network: str | None = None,
    overrides: Sequence[str] = (),
    file: str | None = None,
) -> tuple[str, str]:
    """Return the name and the text of the sweep file that runs a publication.

    Args:
        name: Name of the publication.
        seeds: Number of runs of each arm.
        scale: Fraction of its epochs, images and batch size, for a quick try.
        network: Another network, for a quick try.
        overrides: Options for every run (`key=value`).
        file: Name of the sweep file if the user keeps it; its command then has the overrides.

    Raises:
        UserError: For an arm that the training does not take.
    """
    import yaml

    publication = load_publication(name)
    arms = sorted(
        publication.arms, key=lambda arm: arm != publication.baseline
    )  # a sweep takes the first value as the baseline
    fixed: dict[str, Any] = {"published.name": name}
    fixed |= {"published.scale": scale} if scale != 1 else {}
    fixed |= {"published.network": network} if network else {}
    fixed_overrides = [f"{key}={value}" for key, value in fixed.items()]
    fixed_overrides += [override for override in overrides if key_of(override) not in VARIED]
    first, *_ = [config_from_cli([*fixed_overrides, f"published.arm={arm}"]) for arm in arms]
    # A valid folder name, different for another scale or network.
    parts = ["reproduce", publication.name, f"scale-{scale:g}" if scale != 1 else "", network or ""]
    sweep_name = re.sub(r"[^\w.-]+", "-", "-".join(filter(None, parts)))
    values = {"values": arms}, {"values": [first.seed + number for number in range(seeds)]}
    command_start = ["${env}", "${interpreter}", "-m", "${program}", "run", "resume=auto"]
    content = {
        "program": "ampcompare",
        "project": first.wandb.project,
        "name": sweep_name,
        "method": "grid",
        "parameters": {k: {"value": v} for k, v in fixed.items()} | dict(zip(VARIED, values, strict=True)),
        "command": [*command_start, *(overrides if file else ()), "${args_no_hyphens}"],
    }
    about = " ".join(f"{publication.title}: {publication.source} {publication.url}".split())
    head = HEAD.format(about=about, file=file or "sweep.yaml", name=name)
    return sweep_name, head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
