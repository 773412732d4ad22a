"""The schema's steps: each taken once, whole or not at all, and never backwards."""

from __future__ import annotations

import pytest
from sqlite_utils import Database

from adaptive_dd.errors import StoreError
from adaptive_dd.migrations import MIGRATIONS, migrate, schema_version


def test_a_fresh_database_takes_every_step_once() -> None:
    db = Database(memory=True)
    migrate(db)
    migrate(db)
    assert schema_version(db) == len(MIGRATIONS)
    assert {"deployments", "events", "snapshots"} <= set(db.table_names())
    assert db.view_names() == ["decisions"]


def test_an_older_database_takes_only_what_it_lacks() -> None:
    db = Database(memory=True)
    migrate(db, MIGRATIONS[:1])
    assert db.view_names() == []
    migrate(db)
    assert db.view_names() == ["decisions"]


def test_a_step_that_fails_leaves_nothing_behind() -> None:
    def broken(db: Database) -> None:
        db.execute("create table half (id integer)")
        raise RuntimeError("step failed")

    db = Database(memory=True)
    with pytest.raises(RuntimeError, match="step failed"):
        migrate(db, (*MIGRATIONS, broken))
    assert schema_version(db) == len(MIGRATIONS)
    assert "half" not in db.table_names()


def test_a_database_of_a_newer_version_is_refused_in_one_clear_line() -> None:
    db = Database(memory=True)
    db.execute("pragma user_version = 99")
    with pytest.raises(StoreError, match=r"schema 99, this version knows up to \d"):
        migrate(db)


def test_deployments_of_an_older_database_are_kept_as_those_without_a_way_of_drafting() -> None:
    db = Database(memory=True)
    migrate(db, MIGRATIONS[:2])
    db.execute("insert into deployments (upstream, model, build, cap) values ('http://up', 'm', 'b', null)")
    migrate(db)
    assert list(db.query("select upstream, cap, actuator, spec_type from deployments")) == [
        {"upstream": "http://up", "cap": None, "actuator": "", "spec_type": ""}
    ]
    db.execute(
        "insert into deployments (upstream, model, build, actuator) values ('http://up', 'm', 'b', 'presets')"
    )
    with pytest.raises(Exception, match="UNIQUE"):
        db.execute("insert into deployments (upstream, model, build) values ('http://up', 'm', 'b')")
