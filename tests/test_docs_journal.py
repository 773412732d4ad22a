"""docs/journal.md is true: its SQL runs, and its columns are the view's."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from adaptive_dd import journal, resume
from adaptive_dd.engine import Engine
from adaptive_dd.store import FILE_NAME
from tests.journals import HERE, journal_in, traffic

TEXT = (Path(__file__).parents[1] / "docs" / "journal.md").read_text(encoding="utf-8")


def test_the_query_in_the_docs_runs_and_the_columns_are_those_of_the_view(tmp_path: Path) -> None:
    with journal_in(tmp_path) as stored:
        traffic(Engine(stored, HERE), 20)
    queries = re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        for query in queries:
            assert connection.execute(query).fetchall()
        columns = [row[0] for row in connection.execute("select * from decisions limit 0").description]
        tables = {row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")}
    assert queries
    shown = re.search(r"\| column \| meaning \|\n\|---\|---\|\n(.*?)\n\n", TEXT, re.DOTALL)
    assert shown is not None
    named = [
        name for line in shown.group(1).splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])
    ]
    assert sorted(named) == sorted(columns)
    assert {"deployments", "events", "snapshots"} <= tables


def test_the_numbers_in_the_docs_are_those_of_the_code() -> None:
    assert f"full ({journal.ROOM:,} events)" in TEXT
    assert f"Every {journal.SNAPSHOT_EVENTS} events" in TEXT
    assert f"up to {resume.REBUILD_EVENTS:,} events" in TEXT
    assert f"beyond {journal.KEEP_EVENTS:,} of one" in TEXT
    assert f"up to {journal.WAITING:,} rows wait" in TEXT
    assert journal.EVERY_S == 0.25
    assert journal.RETRY_S == (1.0, 60.0)
