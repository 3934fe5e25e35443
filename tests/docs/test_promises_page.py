"""The page of promises: all ten, all twenty acceptance tests, and each one named is collected."""

from __future__ import annotations

import ast
import re

from tests.docs.pages import ROOT, tables_of

PAGE = ROOT / "docs" / "promises.md"
ACCEPTANCE = [
    "scope.cross_tenant_absent",
    "scope.caller_cannot_widen",
    "scope.background_respects_boundary",
    "evidence.claim_resolves_to_source",
    "evidence.source_delete_reaches_derived",
    "evidence.rebuild_from_retained",
    "gateway.no_bypass_path",
    "gateway.model_cannot_claim_human_authority",
    "tombstone.laundering_sequence",
    "tombstone.survives_ttl_and_prune",
    "tombstone.key_normalization_attack",
    "tombstone.reextraction_stays_inactive",
    "tombstone.no_second_memory_unit",
    "deletion.absent_after_reindex_and_restart",
    "correction.survives_reindex",
    "correction.retraction_without_replacement",
    "deletion.absent_from_shared_copies",
    "retrieval.k_is_an_upper_bound",
    "prompt.recall_is_fenced_as_data",
    "prompt.model_ignores_embedded_instructions",
]
MEASURED = "prompt.model_ignores_embedded_instructions"


def named(cell: str) -> list[tuple[str, str]]:
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", cell)


def collected(path: str) -> set[str]:
    """Give the names of a file's tests at its top level, which are those that pytest runs."""
    body = ast.parse((ROOT / path).read_text()).body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {one.name for one in body if isinstance(one, kinds) and one.name.startswith("test_")}


def test_every_promise_names_tests_that_are_run() -> None:
    promises, _ = tables_of(PAGE)
    assert [row[0] for row in promises[1:]] == [str(number) for number in range(1, 11)]
    for _, promise, cell in promises[1:]:
        assert named(cell), promise
        for path, name in named(cell):
            assert name in collected(path), (promise, path, name)


def test_every_acceptance_id_has_the_test_of_its_name() -> None:
    _, acceptance = tables_of(PAGE)
    assert [row[0].strip("`") for row in acceptance[1:]] == ACCEPTANCE
    for row in acceptance[1:]:
        own_id = row[0].strip("`")
        if own_id == MEASURED:
            assert (ROOT / row[1].split("`")[1]).is_file()
            continue
        path, name = named(row[1])[0]
        assert path.startswith("tests/acceptance/")
        assert name == f"test_{own_id.replace('.', '_')}"
        for one in named(row[1]):
            assert one[1] in collected(one[0]), one
