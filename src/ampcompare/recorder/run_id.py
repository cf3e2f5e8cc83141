"""The records that one program writes one after the other: how many, and their ids under one WANDB_RUN_ID."""

import os
import secrets

_LAST_IDS: dict[str, str] = {}  # by WANDB_RUN_ID: the id of the last record that this process has begun

_begun = 0  # records of this process, each counted once with those that continue it


def count_records(*, continues: bool) -> int:
    """Count a record of this process that begins, and return how many there were with it.

    Args:
        continues: Whether the record continues or replaces the last one.
    """
    global _begun
    if not continues or not _begun:
        _begun += 1
    return _begun


def choose_run_id(*, continues: bool) -> str | None:
    """Return the id of the next record of this process.

    The first record has the id in WANDB_RUN_ID. A further one has it only if it continues the last one: a
    second training from its start, such as another fold, would replace the rows of the first.

    Args:
        continues: Whether the record continues or replaces the last one.

    Returns:
        None where WANDB_RUN_ID does not name a run, so that each record has an id of its own.
    """
    named = os.environ.get("WANDB_RUN_ID")
    if not named:
        return None
    if named not in _LAST_IDS:
        _LAST_IDS[named] = named
    elif not continues:
        _LAST_IDS[named] = secrets.token_hex(4)
    return _LAST_IDS[named]
