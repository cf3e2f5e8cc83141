"""The purposes for which trainings are compared, and the roles of facts that must then be equal.

docs/architecture.md shows this table (`markdown_table`), and a test compares the two.
"""

from collections.abc import Collection
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
        note: What else counts, in words.
    """

    purpose: str
    where: str
    equal: frozenset[Role]
    reported: frozenset[Role] = frozenset()
    reported_keys: tuple[str, ...] = ()
    note: str = ""

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
    note="options of the role session, and `output_dir`, may differ, but not the kind of device",
)
SWEEP = Agreement(
    "continue a sweep",
    "sweeps/sweep_identity.py",
    TRAINING,
    reported=frozenset({Role.CODE}),
    note="the definition of the sweep must be equal too, except for added seeds",
)
POINT = Agreement(
    "train two points of a sweep as one run",
    "sweeps/training_options.py",
    TRAINING | {Role.SEED, Role.SESSION},
)
SERVER_RUN = Agreement(
    "find the run of W&B's server for a point of a sweep",
    "sweeps/status.py",
    frozenset(),
    note="the options that the sweep varies must be equal, whatever their role",
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
    note="backend and device must be equal; of the data their name and content count; with other execution "
    "the arm is not used, and the file is not refused",
)
PUBLICATION = Agreement(
    "compare with a publication",
    "analysis/publication_match.py",
    frozenset({Role.NETWORK, Role.DATA}),
    reported=frozenset({Role.MATHEMATICS, Role.HYPERPARAMETER, Role.EXECUTION}),
    reported_keys=("max_steps",),
    note="the options that the arms vary decide the arm",
)
AGREEMENTS = (RESUME, REPLAY, SWEEP, POINT, SERVER_RUN, REPEAT, BENCHMARK, PUBLICATION)


def markdown_table(agreements: Collection[Agreement] = AGREEMENTS) -> str:
    """Return the table of docs/architecture.md: a line for each purpose."""
    lines = ["| purpose | must be equal | may differ, and is reported | asked in |", "|---|---|---|---|"]
    for agreement in agreements:
        equal = ", ".join(_names(agreement.equal)) or "-"
        if agreement.note:
            equal = f"{equal}; {agreement.note}"
        keys = [f"`{key}`" for key in agreement.reported_keys]
        reported = ", ".join([*_names(agreement.reported), *keys]) or "-"
        lines.append(f"| {agreement.purpose} | {equal} | {reported} | `{agreement.where}` |")
    return "\n".join(lines)


def role_table() -> str:
    """Return the table of roles of docs/architecture.md."""
    lines = ["| role | facts with this role |", "|---|---|"]
    lines += [f"| {role.name.lower()} | {role.value} |" for role in Role]
    return "\n".join(lines)


def _names(roles: Collection[Role]) -> list[str]:
    """Return the names of the roles, in the order of declaration."""
    return [role.name.lower() for role in Role if role in roles]
