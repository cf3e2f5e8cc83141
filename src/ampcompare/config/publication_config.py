"""The setting of a publication as the config of a run, whole or scaled down. Free of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ampcompare.config.compose import ConfigSource, compose, read_options
from ampcompare.config.option_spec import Role
from ampcompare.config.schema import Config, PublishedConfig
from ampcompare.data.sources import get_source
from ampcompare.errors import UserError, did_you_mean

if TYPE_CHECKING:  # pydantic, which few runs need, takes a fifth of a second to load
    from ampcompare.publications.publication import Publication


def publication_sources(published: PublishedConfig) -> list[ConfigSource]:
    """Return the setting of the publication, and of its arm if one is named.

    Raises:
        UserError: No publication is named, it has no such arm, or its file is wrong.
    """
    from ampcompare.publications.publication import list_publications, load_publication

    if published.name is None:
        raise UserError(
            "published.name=None: no publication is named; "
            f"set published.name to a file or one of {', '.join(list_publications())}"
        )
    try:
        publication = load_publication(published.name)
    except UserError as problem:
        raise UserError(f"published.name: {problem}") from None
    if published.arm and published.arm not in publication.arms:
        near = did_you_mean(published.arm, publication.arms)
        near = near or f"expected one of {', '.join(publication.arms)}"
        raise UserError(f"published.arm={published.arm!r}: no arm of {publication.name}; {near}")
    return _arm_sources(publication, published.arm or None, published.scale, published.network)


def arm_config(
    publication: Publication, arm: str | None = None, scale: float = 1.0, network: str | None = None
) -> Config:
    """Return the config of an arm.

    Args:
        arm: The name of the arm. None: what all arms share.
        scale: The fraction of the epochs (1 at least), images and batch size (2 at least), with warm-up in
            proportion, so that an epoch keeps its number of steps.
        network: Another network.

    Raises:
        UserError: The file has something that is no option.
    """
    return compose(*_arm_sources(publication, arm, scale, network))


def _arm_sources(
    publication: Publication, arm: str | None, scale: float, network: str | None
) -> list[ConfigSource]:
    parts = {"setting": publication.setting}
    if arm is not None:
        parts[f"arms.{arm}"] = publication.arms[arm]
    sources = [ConfigSource(part, f"{publication.path}: {where}") for where, part in parts.items()]
    config = compose(*sources)
    for values, file in sources:
        for spec, _ in read_options(values):
            if spec.role is Role.PRESENTATION:
                raise UserError(f"{file}: {spec.key}: is not part of a published setting; leave it out")
    if scale != 1:
        sources.append(ConfigSource(_scaled(config, publication, scale)))
    if network is not None:
        if not any(key.startswith("model.") for key in publication.tiny):
            sources.append(ConfigSource({"model.name": network, "model.kwargs": None}))
        sources.append(ConfigSource(publication.tiny))
    return sources


def _scaled(config: Config, publication: Publication, scale: float) -> dict[str, Any]:
    def less(count: int, least: int) -> int:
        return min(count, max(least, round(count * scale)))

    # BatchNorm has no variance of one image.
    epochs, batch = less(config.epochs, 1), less(config.batch_size, 2)
    milestones = config.schedule.milestones
    data, schedule, source = config.data, config.schedule, get_source(config.data.source)
    images = data.train_limit or publication.images or source.train_images
    tested = data.test_limit or source.test_images
    for count, what, key in ((images, "training", "images"), (tested, "test", "setting.data.test_limit")):
        if not count:
            unknown = f"the number of {what} images of data.source={data.source} is not known"
            raise UserError(f"published.scale={scale:g}: {unknown}; add it to {publication.path} as {key}")
    scaled = {
        "epochs": epochs,
        "batch_size": batch,
        "schedule.warmup_epochs": schedule.warmup_epochs * epochs / config.epochs,
        "schedule.milestones": milestones and [m * epochs / config.epochs for m in milestones],
        "data.train_limit": less(images, batch),
        "data.test_limit": less(tested, 1),
    }
    return scaled if config.max_steps is None else scaled | {"max_steps": less(config.max_steps, 2)}
