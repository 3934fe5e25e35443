"""The agent's tools: what they do, and that nothing outside the copy is ever touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.errors import ServiceUnavailable
from stores.scenes import SandboxLimits, SceneSandbox, ToolCall, ToolError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outside.md").write_text("secret")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "porto.md").write_text("one two one")
    return copy


def test_read_write_and_edit(folder: Path) -> None:
    tools = SceneSandbox(folder)
    assert tools.read("porto.md") == "one two one"
    assert tools.write("Lisbon Trip.MD", "Café") == "Created Lisbon Trip.MD."
    assert tools.write("porto.md", "a $& b \\1 a") == "Replaced porto.md."
    assert "1 later place" in tools.edit("./porto.md", "a", "$&\\0")
    assert tools.read("porto.md") == "$&\\0 $& b \\1 a"
    assert tools.calls == (
        ToolCall("read", "porto.md", 11),
        ToolCall("write", "Lisbon Trip.MD", 5),
        ToolCall("write", "porto.md", 11),
        ToolCall("edit", "./porto.md", 14),
        ToolCall("read", "porto.md", 14),
    )


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd.md", "../outside.md", "a/../../outside.md", "sub/a.md", "C:\\a.md", "..\\a.md",
     "~/a.md", ".hidden.md", "..md", "", " ", "notes.txt", "current", "manifest.json", "a\0.md",
     "a\n.md", "\ud800.md", "x" * 300 + ".md", "\u202eb.md", "porto.md/", "porto.md\0.txt"],
)  # fmt: skip
@pytest.mark.parametrize("tool", ["read", "write", "edit"])
def test_paths_that_are_no_plain_name_are_refused(folder: Path, tool: str, path: str) -> None:
    tools = SceneSandbox(folder)
    with pytest.raises(ToolError) as refusal:
        {
            "read": lambda: tools.read(path),
            "write": lambda: tools.write(path, "x"),
            "edit": lambda: tools.edit(path, "secret", "x"),
        }[tool]()
    assert refusal.value.reason == "bad_path"
    assert tools.calls == (ToolCall(tool, path, 0, "bad_path"),)  # type: ignore[arg-type]
    assert os.listdir(folder) == ["porto.md"]
    assert (folder.parent / "outside.md").read_text() == "secret"


@given(
    path=st.text(st.characters(exclude_categories=()), max_size=30),
    tail=st.sampled_from(["", ".md"]),
)
def test_no_path_of_any_kind_gets_out(
    path: str, tail: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("sandbox")
    (root / "copy").mkdir()
    tools = SceneSandbox(root / "copy")
    try:
        tools.write(path + tail, "x")
    except ToolError:
        assert os.listdir(root / "copy") == []
    else:
        (name,) = os.listdir(root / "copy")
        assert tools.read(path + tail) == "x"
        assert name.lower().endswith(".md")
    assert os.listdir(root) == ["copy"]


def test_links_are_neither_followed_nor_replaced(folder: Path) -> None:
    (folder / "link.md").symlink_to(folder.parent / "outside.md")
    (folder / "hole.md").symlink_to(folder.parent / "new.md")
    tools = SceneSandbox(folder)
    for name in ("link.md", "hole.md"):
        with pytest.raises(ToolError, match="not a plain file"):
            tools.read(name)
        with pytest.raises(ToolError, match="not a plain file"):
            tools.write(name, "x")
    assert (folder.parent / "outside.md").read_text() == "secret"
    assert not (folder.parent / "new.md").exists()


def test_every_other_refusal_says_what_to_do(folder: Path) -> None:
    (folder / "binary.md").write_bytes(b"\xff\xfe\0")
    tools = SceneSandbox(folder, SandboxLimits(max_file_bytes=20, max_files=3))
    with pytest.raises(ToolError, match=r"no file lisbon\.md") as unknown:
        tools.read("lisbon.md")
    with pytest.raises(ToolError, match="Read the file") as absent:
        tools.edit("porto.md", "three", "x")
    with pytest.raises(ToolError, match="empty") as empty:
        tools.edit("porto.md", "", "x")
    with pytest.raises(ToolError, match="22 bytes; at most 20") as large:
        tools.write("porto.md", "é" * 11)
    with pytest.raises(ToolError, match="at most 20"):
        tools.edit("porto.md", "one", "x" * 20)
    with pytest.raises(ToolError, match="control") as control:
        tools.write("porto.md", "a\x1bb")
    with pytest.raises(ToolError, match="half"):
        tools.write("porto.md", "\udc00")
    with pytest.raises(ToolError, match="write"):
        tools.read("binary.md")
    tools.write("third.md", "x")
    with pytest.raises(ToolError, match="existing file") as many:
        tools.write("fourth.md", "x")
    tools.write("binary.md", "now it is text")
    reasons = [error.value.reason for error in (unknown, absent, empty, large, control, many)]
    assert reasons == [
        "unknown_file", "text_not_found", "text_not_found", "too_large", "bad_text",
        "too_many_files",
    ]  # fmt: skip
    assert tools.read("porto.md") == "one two one"
    assert not any("two" in str(call) for call in tools.calls)


def test_names_written_in_two_forms_of_unicode_are_one(folder: Path) -> None:
    tools = SceneSandbox(folder)
    tools.write("Cafe\u0301.md", "x")
    assert tools.read("Café.md") == "x"


def test_a_broken_disk_is_no_fault_of_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    tools = SceneSandbox(folder)
    with pytest.raises(ServiceUnavailable, match="No space left"):
        tools.write("porto.md", "x")
