"""The outbox of the docs, with the commits in the order that a cursor does not survive."""

from __future__ import annotations

import importlib

import pytest
from sqlalchemy.orm import Session

from tests.docs.blocks import ROOT, blocks_of
from tests.docs.running import Page


def test_a_row_that_commits_after_a_later_id_was_relayed_is_sent_too(
    page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = (
        found
        for found in blocks_of(ROOT / "docs" / "recurring-tasks.md")
        if found.file_name == "outbox.py"
    )
    url = page.postgres_url()
    page.rewrite = lambda text: text.replace("sqlite:///outbox.db", url).replace(
        "threadmill_sa.sqlite.configure(engine)\n", ""
    )
    page.run([block])
    outbox = importlib.import_module("outbox")
    outbox.Base.metadata.create_all(outbox.engine)
    outbox.tm.schema.migrate()
    outbox.tm.register()

    with Session(outbox.engine) as slow, Session(outbox.engine) as quick:
        slow.add(outbox.Outbox(message="slow"))
        slow.flush()  # draws id 1 and stalls
        quick.add(outbox.Outbox(message="quick"))
        outbox.tm.nudge("outbox-pump", quick)
        quick.commit()
        outbox.tm.run_until_idle()
        outbox.tm.nudge("outbox-pump", slow)
        slow.commit()
    outbox.tm.run_until_idle()

    assert capsys.readouterr().out.splitlines() == ["2 quick", "1 slow"]
