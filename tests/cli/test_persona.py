"""``sediment persona``: show, history and request."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.in_process import ANA, InProcess

NOBODY = ("--tenant", "acme", "--agent", "helper", "--user", "nobody")


def test_a_persona_is_shown_with_navigation_and_has_a_history(remembered: InProcess) -> None:
    text = remembered.text("persona", "show", *ANA)
    assert text.startswith("# The user\n"), "the text, not the ids of what it rests on"
    assert len(remembered.json("persona", "show", *ANA)["atoms"]) == 3
    assert "> User works as a nurse. User moved to Porto last week (" in text
    assert "- `Who-they-are.md` (heat 0" in text
    kept = remembered.json("persona", "history", *ANA)["items"]
    first = remembered.json("persona", "show", "--generation", str(kept[-1]["generation"]), *ANA)
    assert first["generator"] == "rules/1"
    assert kept[-1]["reason"].startswith("cold_start")
    assert "rules/1" in remembered.text("persona", "history", *ANA)


def test_nobody_has_no_persona(remembered: InProcess) -> None:
    assert "has no persona yet" in remembered.run("persona", "show", *NOBODY, code=2).err
    assert "nothing is written" in remembered.text("persona", "history", *NOBODY)


def test_one_that_is_asked_for_is_written_by_the_next_run(
    remembered: InProcess, tmp_path: Path
) -> None:
    shutil.copytree(remembered.data_dir, tmp_path / "data", symlinks=True)
    own = InProcess(tmp_path / "data")
    before = own.json("persona", "history", *ANA)["items"][0]["generation"]
    asked = own.json("persona", "request", "--reason", "new   job", *ANA)
    assert asked["reason"] == "new job"
    own.run("run", "--embedded")
    newest = own.json("persona", "history", *ANA)["items"][0]
    assert (newest["generation"], newest["reason"]) == (before + 1, "request: new job")
    own.run("run", "--embedded")
    assert own.json("persona", "history", *ANA)["items"][0] == newest
    assert "--reason" in own.run("persona", "request", "--reason", " ", *ANA, code=2).err
    assert "asked for a new persona" in own.text("persona", "request", "--reason", "x", *ANA)
