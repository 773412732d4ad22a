"""The database's schema as a numbered list of steps; `PRAGMA user_version` counts those already taken.

A step is never changed once released: a new one is added below it.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlite_utils import Database

from adaptive_dd.errors import StoreError


def _first_tables(db: Database) -> None:
    db.execute(
        """create table deployments (
            id integer primary key, upstream text not null, model text not null, build text not null, cap integer)"""
    )
    # A null cap is a value here: unknown is one deployment, not many.
    db.execute(
        "create unique index deployments_once on deployments(upstream, model, build, coalesce(cap, -1))"
    )
    db.execute(
        """create table events (
            id integer primary key autoincrement, deployment integer not null references deployments(id),
            at_s real not null, type text not null, number integer, body text not null)"""
    )
    db.execute("create index events_by_deployment on events(deployment, id)")
    db.execute("create index events_by_number on events(number, deployment) where number is not null")
    # origin: `fold` follows from the rows before it; `start` where those are not there.
    db.execute(
        """create table snapshots (
            id integer primary key autoincrement, deployment integer not null references deployments(id),
            event_id integer not null, origin text not null, digest text not null, body text not null)"""
    )


def _decisions_view(db: Database) -> None:
    """One row a decision, with how it ended, for people who speak SQL."""
    db.execute(
        """create view decisions as
        with d as (
            select deployment, number, at_s, body,
                json_extract(body, '$.decision.arm.n_max') as n, json_extract(body, '$.decision.arm.p_min') as p,
                json_extract(body, '$.decision.arm.n_min') as m
            from events where type = 'Decided'),
        e as (select deployment, number, body, type from events where type in ('Observed', 'Abandoned'))
        select d.deployment, d.number, d.at_s, datetime(d.at_s, 'unixepoch') as at,
            json_extract(d.body, '$.context.prompt_tokens') as prompt_tokens,
            json_extract(d.body, '$.context.tokens_source') as tokens_source,
            json_extract(d.body, '$.context.in_flight') as in_flight,
            json_extract(d.body, '$.decision.cell.bucket') as bucket,
            json_extract(d.body, '$.decision.cell.load') as load,
            json_extract(d.body, '$.decision.cell.kind') as kind,
            case when coalesce(n, p, m) is null then 'server' else ltrim(
                coalesce('n' || n, '') || coalesce(',p' || p, '') || coalesce(',m' || m, ''), ',') end as setting,
            json_extract(d.body, '$.decision.reason') as reason,
            json_extract(d.body, '$.decision.propensity') as propensity,
            json_extract(d.body, '$.decide_us') as decide_us,
            coalesce(json_extract(e.body, '$.outcome.status'), json_extract(e.body, '$.why'), 'open') as status,
            json_extract(e.body, '$.outcome.rejected') as rejected,
            json_extract(e.body, '$.outcome.http_status') as http_status,
            json_extract(e.body, '$.outcome.mean_in_flight') as mean_in_flight,
            json_extract(e.body, '$.outcome.timings.prompt_n') as prompt_n,
            json_extract(e.body, '$.outcome.timings.cache_n') as cache_n,
            json_extract(e.body, '$.outcome.timings.prompt_ms') as prompt_ms,
            json_extract(e.body, '$.outcome.timings.predicted_n') as predicted_n,
            json_extract(e.body, '$.outcome.timings.predicted_ms') as predicted_ms,
            json_extract(e.body, '$.outcome.timings.draft_n') as draft_n,
            json_extract(e.body, '$.outcome.timings.draft_n_accepted') as accepted,
            1000.0 * json_extract(e.body, '$.outcome.timings.predicted_n')
                / nullif(json_extract(e.body, '$.outcome.timings.predicted_ms'), 0) as tokens_per_s
        from d left join e on e.number = d.number and e.deployment = d.deployment"""
    )


def _ways_of_drafting(db: Database) -> None:
    """How settings reach the server and how it drafts are part of what a deployment is."""
    db.execute("alter table deployments add column actuator text not null default ''")
    db.execute("alter table deployments add column spec_type text not null default ''")
    db.execute("drop index deployments_once")
    db.execute(
        """create unique index deployments_once
            on deployments(upstream, model, build, coalesce(cap, -1), actuator, spec_type)"""
    )


def _inferred_answers(db: Database) -> None:
    """Answers that were learned from by their arrivals are marked, and say nothing of what was drafted."""
    (text,) = db.execute(
        "select sql from sqlite_master where type = 'view' and name = 'decisions'"
    ).fetchone()
    mark = "json_extract(e.body, '$.outcome.inferred')"
    for name in ("draft_n", "draft_n_accepted"):
        counted = f"json_extract(e.body, '$.outcome.timings.{name}')"
        text = text.replace(f"{counted} as", f"case when {mark} then null else {counted} end as")
    joined = "from d left join e"
    text = text.replace(joined, f", coalesce({mark}, 0) as inferred\n        {joined}")
    db.execute("drop view decisions")
    db.execute(text)


MIGRATIONS: tuple[Callable[[Database], None], ...] = (
    _first_tables,
    _decisions_view,
    _ways_of_drafting,
    _inferred_answers,
)


def migrate(db: Database, steps: tuple[Callable[[Database], None], ...] = MIGRATIONS) -> None:
    """Take the steps that a database still lacks, each whole or not at all.

    Raises StoreError when the database was written by a newer version.
    """
    taken = schema_version(db)
    if taken > len(steps):
        raise StoreError(
            f"the database has schema {taken}, this version knows up to {len(steps)}: a newer adaptive-dd wrote it"
        )
    for number, step in enumerate(steps[taken:], start=taken + 1):
        with db.atomic():
            step(db)
            db.execute(f"pragma user_version = {number}")


def schema_version(db: Database) -> int:
    """How many steps a database has taken."""
    return int(db.execute("pragma user_version").fetchone()[0])
