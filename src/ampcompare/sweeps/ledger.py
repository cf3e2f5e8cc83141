"""What the workers of a sweep agree on beside its runs: written once, or changed from a known value.

Optuna's attributes of a study are one row each, with one row a key. `set_user_attr` overwrites, so that the
later of two workers would win without knowing; these two operations tell the loser.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import column, insert, table, update
from sqlalchemy.exc import IntegrityError

from ampcompare.sweeps.contact import Contact

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import RDBStorage

_ATTRIBUTES = table("study_user_attributes", column("study_id"), column("key"), column("value_json"))


class Ledger:
    """The attributes of one study. Values are plain JSON. All wait for a database that is away, and raise
    UserError for one that is gone.
    """

    def __init__(self, study: Study, storage: RDBStorage, contact: Contact) -> None:
        self._study, self._engine, self._contact = study, storage.engine, contact

    def read(self) -> dict[str, Any]:
        """Everything that was written."""
        return self._contact.wait(lambda: self._study.user_attrs)

    def put_once(self, key: str, value: Any) -> bool:
        """Write a value that nobody has written. False: somebody has."""
        row = {"study_id": self._study._study_id, "key": key, "value_json": json.dumps(value)}
        tries = 0

        def write() -> bool:
            nonlocal tries
            tries += 1
            try:
                with self._engine.begin() as connection:
                    connection.execute(insert(_ATTRIBUTES).values(**row))
            except IntegrityError:
                # The connection may have broken after it was written, before that was heard.
                return tries > 1 and self._study.user_attrs.get(key) == value
            return True

        return self._contact.wait(write)

    def swap(self, key: str, old: Any, new: Any) -> bool:
        """Write `new` where `old` was written. False: something else is there by now."""
        columns = _ATTRIBUTES.c
        change = (
            update(_ATTRIBUTES)
            .where(columns.study_id == self._study._study_id, columns.key == key)
            .where(columns.value_json == json.dumps(old))
            .values(value_json=json.dumps(new))
        )
        tries = 0

        def write() -> bool:
            nonlocal tries
            tries += 1
            with self._engine.begin() as connection:
                if connection.execute(change).rowcount == 1:
                    return True
            return tries > 1 and self._study.user_attrs.get(key) == new  # as in `put_once`

        return self._contact.wait(write)
