"""A job locks no row of its owner: whoever deletes an owner looks for jobs instead."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# By its foreign key each job locked its owner's row: all jobs of an owner that were submitted at
# once wrote to that one row. Owners are not deleted by anything of ours; by hand, it is seldom.
_REFUSE = """
CREATE FUNCTION refuse_to_lose_owner() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM job WHERE owner_id = OLD.id) THEN
        RAISE EXCEPTION 'owner % has jobs', OLD.name
        USING ERRCODE = 'foreign_key_violation', TABLE = 'owner',
              HINT = 'Revoke its keys instead: python -m api.keys revoke';
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END
$$"""
_BEFORE = (
    "CREATE TRIGGER owner_has_no_jobs BEFORE DELETE ON owner"
    " FOR EACH ROW EXECUTE FUNCTION refuse_to_lose_owner()",
    "CREATE TRIGGER owner_stays_itself BEFORE UPDATE OF id ON owner"
    " FOR EACH ROW WHEN (OLD.id IS DISTINCT FROM NEW.id)"
    " EXECUTE FUNCTION refuse_to_lose_owner()",
)


def upgrade() -> None:
    """Make the changes; the caller set ``lock_timeout``."""
    op.execute("ALTER TABLE job DROP CONSTRAINT job_owner_id_fkey")
    op.execute(_REFUSE)
    for trigger in _BEFORE:
        op.execute(trigger)


def downgrade() -> None:
    """Take the changes back; the key holds of what comes after."""
    op.execute("DROP TRIGGER owner_stays_itself ON owner")
    op.execute("DROP TRIGGER owner_has_no_jobs ON owner")
    op.execute("DROP FUNCTION refuse_to_lose_owner()")
    op.execute(
        "ALTER TABLE job ADD CONSTRAINT job_owner_id_fkey"
        " FOREIGN KEY (owner_id) REFERENCES owner (id) NOT VALID"
    )
