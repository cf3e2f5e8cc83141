"""A publication of the runs that `support.fakes.make` makes."""

import yaml

from support.fakes import MEMORY, SPEED

CARD = "Test Device 9000"
BACKENDS = {"fp32": "none", "amp": "native", "O1": "apex_o1"}


def written(folder, figures=None, **more):
    """Write a publication of the runs that `make` makes, and return its path.

    `figures` replaces the published values.
    """
    content = {
        "title": "A paper",
        "source": "Somebody 2020",
        "hardware": CARD,
        "setting": {"model": {"name": "resnet50"}, "data.source": "cifar10", "batch_size": 128, "epochs": 5},
        "baseline": "fp32",
        "arms": {name: {"backend": backend} for name, backend in BACKENDS.items()},
        "figures": {"speed": throughput()} if figures is None else figures,
    } | more
    path = folder / "paper.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return str(path)


def throughput(times=1.0):
    values = {n: f"{SPEED[b] * (1 if b == 'none' else times):.1f}" for n, b in BACKENDS.items()}
    return {"measured": "images_per_second", "values": values}


def peaks(times=1.0):
    values = {n: f"{MEMORY[b] * (1 if b == 'none' else times):.0f}" for n, b in BACKENDS.items()}
    return {"measured": "peak_memory", "values": values}
