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
        known = did_you_mean(published.arm, publication.arms)
        if not known:
            known = f"expected one of {', '.join(publication.arms)}"
        raise UserError(f"published.arm={published.arm!r}: no arm of {publication.name}; {known}")
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
    """Return the options that scale the setting of a publication down.

    Raises:
        UserError: The number of images is not known.
    """

    def scale_down(count: int, least: int) -> int:
        return min(count, max(least, round(count * scale)))

    data = config.data
    schedule = config.schedule
    source = get_source(data.source)
    train_images = data.train_limit or publication.images or source.train_images
    test_images = data.test_limit or source.test_images
    for count, split, key in (
        (train_images, "training", "images"),
        (test_images, "test", "setting.data.test_limit"),
    ):
        if not count:
            raise UserError(
                f"published.scale={scale:g}: the number of {split} images of data.source={data.source} "
                f"is not known; add it to {publication.path} as {key}"
            )
    epochs = scale_down(config.epochs, 1)
    batch_size = scale_down(config.batch_size, 2)  # BatchNorm has no variance of one image
    milestones = schedule.milestones
    scaled: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "schedule.warmup_epochs": schedule.warmup_epochs * epochs / config.epochs,
        "schedule.milestones": milestones and [m * epochs / config.epochs for m in milestones],
        "data.train_limit": scale_down(train_images, batch_size),
        "data.test_limit": scale_down(test_images, 1),
    }
    if config.max_steps is not None:
        scaled["max_steps"] = scale_down(config.max_steps, 2)
    return scaled
