"""`threadmill-sa leases`: who holds which mutex."""

from __future__ import annotations

import click

from threadmill_sa.cli.options import chosen_target, output_options, target_options, wants_json
from threadmill_sa.cli.output import emit_json, emit_table, note
from threadmill_sa.cli.views import utc
from threadmill_sa.model.lease import LeaseView

_HEADINGS = ("name", "holder", "term", "acquired (UTC)", "remaining")


@click.command()
@target_options
@output_options
@click.pass_context
def leases(ctx: click.Context, app: str | None, url: str | None, schema: str | None) -> None:
    """Show every mutex that was ever held: holder, term, and the seconds that remain."""
    with chosen_target(ctx, app, url, schema).open() as tm:
        views = tm.leases()
    if wants_json(ctx):
        emit_json(views)
    elif views:
        emit_table(_HEADINGS, [_row(view) for view in views])
    else:
        note("no mutex was ever held")


def _row(view: LeaseView) -> tuple[str, ...]:
    held = view.holder is not None
    return (
        view.name,
        view.holder or "-",
        str(view.term),
        utc(view.acquired_at),
        f"{view.remaining_seconds:.1f} s" if held else "-",
    )
