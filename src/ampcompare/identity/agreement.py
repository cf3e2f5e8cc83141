"""The purposes for which trainings are compared, and the roles of facts that must then be equal.

docs/architecture.md shows this as a table, and a test compares the two.
"""

from dataclasses import dataclass

from ampcompare.config.option_spec import Role

# What a config says of the training itself.
TRAINING = frozenset(
    {
        Role.NETWORK,
        Role.DATA,
        Role.PRECISION,
        Role.MATHEMATICS,
        Role.HYPERPARAMETER,
        Role.EXECUTION,
        Role.MEASUREMENT,
    }
)


@dataclass(frozen=True)
class Agreement:
    """What must be equal in two trainings for one purpose.

    Attributes:
        where: The module that asks, relative to `src/ampcompare/`.
        equal: Roles of the facts that must be equal.
        reported: Roles of the facts that may differ; the user is told which do.
        reported_keys: Facts that may differ and are reported, although their role would decide otherwise.
    """

    purpose: str
    where: str
    equal: frozenset[Role]
    reported: frozenset[Role] = frozenset()
    reported_keys: tuple[str, ...] = ()

    @property
    def roles(self) -> frozenset[Role]:
        """All roles whose facts are compared, to be equal or to be reported."""
        return self.equal | self.reported


RESUME = Agreement(
    "continue a run (`resume=auto`)",
    "training/checkpoint/store.py",
    TRAINING | {Role.SEED, Role.CODE},
)
REPLAY = Agreement(
    "replay a recorded run (`why --at`)",
    "why/recorded_run.py",
    RESUME.equal,
)
SWEEP = Agreement(
    "continue a sweep",
    "sweeps/sweep_identity.py",
    TRAINING,
    reported=frozenset({Role.CODE}),
)
POINT = Agreement(
    "train two points of a sweep as one run",
    "sweeps/training_options.py",
    TRAINING | {Role.SEED, Role.SESSION},
)
REPEAT = Agreement(
    "pool repeats in a report",
    "analysis/grouping/distinguishing_settings.py",
    TRAINING | {Role.SESSION, Role.CODE, Role.MACHINE},
)
BENCHMARK = Agreement(
    "use a benchmark in a report (`--bench`)",
    "analysis/bench_match.py",
    frozenset({Role.NETWORK, Role.DATA, Role.CODE, Role.EXECUTION}),
    reported=frozenset({Role.PRECISION, Role.MATHEMATICS}),
    reported_keys=("memory_format",),
)
PUBLICATION = Agreement(
    "compare with a publication",
    "analysis/publication_match.py",
    frozenset({Role.NETWORK, Role.DATA}),
    reported=frozenset({Role.MATHEMATICS, Role.HYPERPARAMETER, Role.EXECUTION}),
    reported_keys=("max_steps",),
)
AGREEMENTS = (RESUME, REPLAY, SWEEP, POINT, REPEAT, BENCHMARK, PUBLICATION)
