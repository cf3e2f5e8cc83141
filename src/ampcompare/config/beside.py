"""The options of a run that touch none of its figures: checkpoints, plan, publication, W&B's record."""

from dataclasses import dataclass

from ampcompare.config.options import option


@dataclass
class CheckpointConfig:
    every_epochs: int | None = option(1, "epochs between checkpoints", low=1)
    every_minutes: float | None = option(
        10.0, "minutes between checkpoints, within epochs too; both null: none, not even at the end", above=0
    )


@dataclass
class PublishedConfig:
    """The publication that a run repeats (`publication.py`): it sets other options, and these train."""

    name: str | None = option(None, "whose setting to take: a name of configs/published, or a file")
    # A text that may be `none`: many call an arm so.
    arm: str = option("", "and what it calls this arm; empty: what its arms share alone")
    scale: float = option(1.0, "for a look: so much of its epochs, images and batch size", above=0, high=1)
    network: str | None = option(None, "for a look: another network", choices=("tiny",))


@dataclass
class PlanConfig:
    """What was laid down before the runs: it lies in each one's record, and none trains by it.

    Beside it a sweep notes there of its own what a run is in it: `arm` (first, last) of the control, `block`
    and `place`.
    """

    margin: float | None = option(
        None,
        "margin of equivalence in the unit that the report shows, such as points of accuracy; null: the "
        "report's own",
        above=0,
    )
    target: float | None = option(
        None, "value that the time to target goes by, as logged, such as 0.93; null: the baseline's", above=0
    )
    looks: list[int] | None = option(
        None, "numbers of seeds at which somebody looks and may stop; null: one look, at the end", low=2
    )
    max_seeds: int | None = option(None, "seeds at most where they are added until all is decided", low=2)
    control: str = option(
        "none",
        "the baseline once more as a group of its own; bookends: first and last in the sweep",
        choices=("none", "bookends"),
        hints={"null": "none", "false": "none", "true": "bookends"},
    )


@dataclass
class WandbConfig:
    mode: str = option(
        "auto",
        "auto: online with an API key, offline without; disabled keeps no record",
        choices=("auto", "online", "offline", "disabled"),
        hints={"off": "disabled", "none": "disabled", "false": "disabled", "dryrun": "offline"},
    )
    project: str = option(
        "comparison-amp",
        "project",
        pattern=r"[^/\\#?%:\x00-\x1f]{1,128}",
        pattern_words=r"1 to 128 characters without / \ # ? % :",
    )
    entity: str | None = option(None, "user or team; null: the key's default")
    group: str | None = option(None, "group; a sweep's id goes before it")
    name: str | None = option(None, "run name; null: from backend, model and data")
    tags: list[str] = option([], "tags")
    notes: str | None = option(None, "notes")
