"""The setting of a publication as a run takes it: what its arms share and the arm's own, or less of it for a
look. Free of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ampcompare.config.beside import PublishedConfig
from ampcompare.config.build import build, options_in
from ampcompare.config.options import Role
from ampcompare.config.schema import LEAVES, Config
from ampcompare.data.sources import source_of
from ampcompare.errors import UserError, did_you_mean

if TYPE_CHECKING:  # pydantic, which few runs need, takes a fifth of a second to load
    from ampcompare.published.publication import Publication


def repeated(of: PublishedConfig) -> Config:
    """The config of the arm that is named, what its publication leaves open by default.

    Raises UserError: nothing or nobody is named, the arm is none of it, its file is not in order.
    """
    from ampcompare.published.publication import load, names

    if of.name is None:
        raise UserError(f"published.name=None: set it to a file or one of {', '.join(names())}")
    try:
        publication = load(of.name)
    except UserError as problem:
        raise UserError(f"published.name: {problem}") from None
    if of.arm and of.arm not in publication.arms:
        near = did_you_mean(of.arm, publication.arms) or f"expected one of {', '.join(publication.arms)}"
        raise UserError(f"published.arm={of.arm!r}: no arm of {publication.name}; {near}")
    return arm_config(publication, of.arm or None, of.scale, of.network)


def arm_config(
    publication: Publication, arm: str | None = None, scale: float = 1.0, network: str | None = None
) -> Config:
    """The config of one of its arms; None: what they share alone.

    With a `scale` below 1 it has that much of the epochs (1 at least), images and batch size (2 at least),
    and warm-up in proportion, so that an epoch keeps its number of steps; with a `network` that one. Raises
    UserError for a file whose options are none.
    """
    config, parts = Config(), {"setting": publication.setting}
    if arm is not None:
        parts[f"arms.{arm}"] = publication.arms[arm]
    for where, part in parts.items():
        said = f"{publication.path}: {where}"
        config = build(config, (said, part))
        for key in options_in(part):
            if LEAVES[key].role is Role.BOOKKEEPING:
                raise UserError(f"{said}: {key}: is for whoever repeats it; leave it out")
    if scale != 1:
        config = build(config, ("", _shrunk(config, publication, scale)))
    if network is not None:
        if not any(key.startswith("model.") for key in publication.tiny):
            config = build(config, ("", {"model.name": network, "model.kwargs": None}))
        config = build(config, ("", publication.tiny))
    return config


def _shrunk(config: Config, publication: Publication, scale: float) -> dict[str, Any]:
    def less(count: int, least: int) -> int:
        return min(count, max(least, round(count * scale)))

    # BatchNorm has no variance of one image.
    epochs, batch = less(config.epochs, 1), less(config.batch_size, 2)
    milestones = config.schedule.milestones
    data, schedule, source = config.data, config.schedule, source_of(config.data.source)
    images = data.train_limit or publication.images or source.train_images
    tested = data.test_limit or source.test_images
    for count, what, key in ((images, "training", "images"), (tested, "test", "setting.data.test_limit")):
        if not count:
            unknown = f"how many {what} images data.source={data.source} has is not known"
            raise UserError(f"published.scale={scale:g}: {unknown}; say it in {publication.path}, as {key}")
    found = {
        "epochs": epochs,
        "batch_size": batch,
        "schedule.warmup_epochs": schedule.warmup_epochs * epochs / config.epochs,
        "schedule.milestones": milestones and [m * epochs / config.epochs for m in milestones],
        "data.train_limit": less(images, batch),
        "data.test_limit": less(tested, 1),
    }
    return found if config.max_steps is None else found | {"max_steps": less(config.max_steps, 2)}
