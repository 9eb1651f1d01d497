"""Writing the CHECKs of a table anew, and giving its columns other types, in one statement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def reword(
    table: str, *, gone: Iterable[str], said: Mapping[str, str], types: Mapping[str, str]
) -> None:
    """Drop CHECKs, change types of columns, and add CHECKs that are ``NOT VALID`` yet.

    One table in a transaction: who claims locks tables in another order than who submits, and would
    stand in a circle with who holds one and asks for the next.
    """
    changes = [f"ALTER {column} TYPE {name}" for column, name in types.items()]
    changes += [f"DROP CONSTRAINT {name}" for name in gone]
    changes += [f"ADD CONSTRAINT {name} CHECK ({rule}) NOT VALID" for name, rule in said.items()]
    op.execute(f"ALTER TABLE {table} {', '.join(changes)}")
