"""What the benchmarks print, as rows of one table and as curves of cost. Pure.

Most print a list of figures; those whose JSON has a shape of its own have a reader here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

__all__ = ["COLUMNS", "Curve", "Row", "curves_of", "rows_of"]


@dataclass(frozen=True)
class Row:
    """One figure.

    :arg beside: its ceiling, baseline or peer in the same run; ``note`` says which.
    :arg target: in words; empty where nothing was promised.
    """

    benchmark: str
    name: str
    measured: float
    unit: str = ""
    beside: float | None = None
    ratio: float | None = None
    target: str = ""
    note: str = ""


COLUMNS = ("benchmark", "name", "measured", "unit", "beside", "ratio", "target", "note")


@dataclass(frozen=True)
class Curve:
    """How a cost grows with what is remembered.

    :arg series: (memories, cost) by name, memories ascending.
    """

    title: str
    unit: str
    series: Mapping[str, Sequence[tuple[float, float]]]


def rows_of(benchmark: str, printed: Sequence[Any]) -> list[Row]:
    """Read what a benchmark printed.

    :arg printed: a JSON document for each time it ran, such as once for each size.
    """
    read = _READERS.get(benchmark, _listed)
    return [row for document in printed for row in read(benchmark, document)]


def _listed(benchmark: str, document: Any) -> list[Row]:
    """Read a list of figures, whatever they call what stands beside them."""
    figures = document["figures"] if isinstance(document, dict) else document
    rows = []
    for one in figures:
        beside = next((one[key] for key in ("beside", "reference", "bound") if one.get(key)), None)
        ratio = one.get("ratio")
        if ratio is None and beside:
            ratio = one["measured"] / beside
        if ratio is not None and not isfinite(ratio):
            ratio = None  # beside nothing at all; JSON has no word for it
        rows.append(
            Row(
                benchmark, one["name"], one["measured"], one.get("unit", ""), beside, ratio,
                one.get("target", ""), one.get("note", ""),
            )
        )  # fmt: skip
    return rows


def _recall(benchmark: str, one: Any) -> list[Row]:
    rows = []
    for p in ("p50", "p95"):
        ours, bare = one["ms"]["recall"][p], one["ms"]["raw at once"][p]
        target = f"at most {one['target_p95_ms']:g} ms at 5,000"
        rows.append(
            Row(
                benchmark, f"recall at {one['memories']:,} memories, {p}", ours, "ms", bare,
                ours / bare, target if p == "p95" else "", "beside: the bare searches, all at once",
            )
        )  # fmt: skip
    return rows


def _store(benchmark: str, one: Any) -> list[Row]:
    ours, bare = one["our_rows_per_s"], one["raw_rows_per_s"]
    rows = [Row(benchmark, "upserts", ours, "rows/s", bare, ours / bare, "", "beside: pymilvus")]
    for title, when in (("searches", ""), ("searches_while_ingesting", ", 200 rows/s come in")):
        for size, arms in one[title].items():
            slowest = max(arms[arm]["p95_ms"] for arm in ("dense", "keyword"))
            both = arms["both"]["p95_ms"]
            rows.append(
                Row(
                    benchmark, f"both arms at {int(size):,} rows{when}, p95", both, "ms", slowest,
                    both / slowest, "at most 60 ms at 5,000" if not when else "",
                    "beside: the slower arm alone",
                )
            )  # fmt: skip
    deleted = one["deletion"]["rows_per_s"]
    return [*rows, Row(benchmark, "deletion", deleted, "rows/s")]


def _reconcile(benchmark: str, one: Any) -> list[Row]:
    rows = []
    for name in ("rules", "model", "model_with_embedding"):
        costs = one.get("growth", {}).get(name, {}).get("ms_per_atom", {})
        sizes = sorted(costs, key=int)
        for size in sizes[1:]:
            ratio = costs[size] / costs[sizes[0]]
            rows.append(
                Row(
                    benchmark, f"an atom by {name.replace('_', ' ')}, scope of {int(size):,}",
                    costs[size], "ms", costs[sizes[0]], ratio, "at most 1.5 times at 50,000",
                    f"beside: scope of {int(sizes[0]):,}; processor time",
                )
            )  # fmt: skip
    if everything := one.get("duplicates", {}).get("all"):
        share = everything["near_duplicates"] / max(1, everything["active"])
        rows.append(
            Row(benchmark, "near-duplicates left", share, "of 1", None, None, "at most 0.01",
                f"{everything['active']} atoms by rules")
        )  # fmt: skip
    return rows


def _embeddings(benchmark: str, one: Any) -> list[Row]:
    rows = []
    for kind in ("short", "short_chinese", "long"):
        ours = one[kind]["texts_per_s"]
        alone = one[f"{kind}_engine_alone"]["texts_per_s"]
        name = f"bundled model, {kind.replace('_', ' ')} texts"
        rows.append(
            Row(benchmark, name, ours, "texts/s", alone, ours / alone, "", "beside: engine alone")
        )
    return [*rows, Row(benchmark, "bundled model, a query, p95", one["query_ms"]["p95"], "ms")]


def _query_load(benchmark: str, one: Any) -> list[Row]:
    server, lite = one["server"], one["lite"]
    raw = "beside: the bare searches, all at once"
    rows = []
    for found, where, target in (
        (server.get("latency"), f"server, {server.get('atoms', 0):,} atoms", "raw + 10 ms"),
        (lite["latency"], f"milvus-lite, {lite['memories']:,} memories", "at most 80 ms"),
    ):
        if found is not None:
            ours, bare = (found["ms"][way]["p95"] for way in ("recall", "raw"))
            name = f"recall on {where}, p95"
            rows.append(Row(benchmark, name, ours, "ms", bare, ours / bare, target, raw))
    if load := server.get("throughput"):
        bare = sum(load["raw_per_s"]) / len(load["raw_per_s"])
        name = f"recalls over HTTP, {load['clients']} clients"
        ours = load["recall_per_s"]
        rows.append(
            Row(benchmark, name, ours, "1/s", bare, ours / bare, "0.7 of the searches", raw)
        )
    if growth := server.get("growth"):
        few, most = sorted(growth["sizes"], key=int)
        beside = f"beside: among {int(few):,}"
        for state, found in (("just written", growth), ("sealed", growth["sealed"])):
            before, after = (found["sizes"][size]["ms"]["recall"]["p95"] for size in (few, most))
            name = f"recall in a scope of 100 among {int(most):,}, {state}, p95"
            times = after / before
            rows.append(Row(benchmark, name, after, "ms", before, times, "1.5 times", beside))
    return rows


_READERS: Mapping[str, Callable[[str, Any], list[Row]]] = {
    "query_load": _query_load,
    "recall": _recall,
    "store": _store,
    "reconcile": _reconcile,
    "embeddings": _embeddings,
}


def curves_of(printed: Mapping[str, Sequence[Any]]) -> list[Curve]:
    """Draw what grows with memory, of the benchmarks that ran at more than one size."""
    curves = []
    recalls = sorted(printed.get("recall", ()), key=lambda one: int(one["memories"]))
    if len(recalls) > 1:
        series = {
            f"{way}, {p}": [(float(one["memories"]), float(one["ms"][way][p])) for one in recalls]
            for way in ("recall", "raw at once")
            for p in ("p50", "p95")
        }
        curves.append(Curve("A recall, by memories", "ms", series))
    for one in printed.get("reconcile", ()):
        series = {
            name.replace("_", " "): sorted(
                (float(size), float(cost)) for size, cost in kind["ms_per_atom"].items()
            )
            for name, kind in one.get("growth", {}).items()
            if "ms_per_atom" in kind
        }
        if series:
            curves.append(Curve("Reconcile an atom, by atoms of its scope", "ms", series))
    return curves
