"""Words of a cluster on the command line: `slurm.time=60`, `ray.num_gpus=0.5`."""

from collections.abc import Sequence

from ampcompare.config.load import parse_override
from ampcompare.errors import UserError

CLUSTERS = ("slurm", "ray")


def split_cluster_words(
    words: Sequence[str], cluster: str | None, *, any_cluster: bool = False
) -> tuple[dict[str, str], list[str]]:
    """Split words into those of the cluster, by name without prefix, and those of the runs.

    Args:
        words: `key=value` words.
        cluster: `slurm` or `ray`; None where the runs are processes of this machine.
        any_cluster: Leave out the words of every cluster: nothing is started.

    Raises:
        UserError: For a word of a cluster that is not used.
    """
    own: dict[str, str] = {}
    of_runs = []
    for word in words:
        key, value = parse_override(word)
        prefix, dot, name = key.partition(".")
        if not dot or prefix not in CLUSTERS:
            of_runs.append(word)
        elif prefix == cluster:
            own[name] = str(value)
        elif not any_cluster:
            raise UserError(f"{word}: is an option of --cluster {prefix}; add that, or leave the word out")
    return own, of_runs
