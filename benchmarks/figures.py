"""What the benchmarks measure: figures, as rows of one table, and curves of cost.

Most print a list of figures; those whose JSON has a shape of its own have a reader here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["COLUMNS", "Curve", "Figure", "Row", "curves_of", "rows_of", "show", "tell", "written"]


@dataclass(frozen=True)
class Figure:
    """One figure.

    :arg beside: its ceiling, baseline or peer in the same run; ``note`` says which.
    :arg target: in words; empty where nothing was promised.
    :arg ratio: of the two; given only where it is another one, as a median of rounds is.
    """

    name: str
    measured: float
    unit: str = ""
    beside: float | None = None
    target: str = ""
    note: str = ""
    ratio: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Work the ratio out; there is none beside nothing at all."""
        if self.ratio is None and self.beside:
            object.__setattr__(self, "ratio", self.measured / self.beside)


@dataclass(frozen=True)
class Row(Figure):
    """A figure, and the benchmark it is of."""

    benchmark: str = field(kw_only=True)


COLUMNS = ("benchmark", "name", "measured", "unit", "beside", "ratio", "target", "note")


def show(title: str, figures: Sequence[Figure]) -> None:
    """Print figures for people; a column that all leave empty is left out."""
    rows = [asdict(figure) for figure in figures]
    table = Table(title=title)
    filled = [name for name in COLUMNS if any(written(row.get(name)) for row in rows)]
    for name in filled:
        number = name in {"measured", "beside", "ratio"}
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*(written(row[name]) for name in filled))
    Console().print(table)


def tell(title: str, figures: Sequence[Figure], *, as_json: bool) -> None:
    """Print what a benchmark measured, for people or as JSON, which :func:`rows_of` reads."""
    if as_json:
        print(json.dumps([asdict(figure) for figure in figures], indent=2))
    else:
        show(title, figures)


def written(value: Any) -> str:
    """Write a field of a figure: numbers with six digits, nothing for what is missing."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


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
    figures = [figure for document in printed for figure in read(document)]
    return [Row(**asdict(figure), benchmark=benchmark) for figure in figures]


def _listed(document: Any) -> list[Figure]:
    figures = document["figures"] if isinstance(document, dict) else document
    return [Figure(**one) for one in figures]


def _recall(one: Any) -> list[Figure]:
    figures = []
    for p, target in (("p50", ""), ("p95", f"at most {one['target_p95_ms']:g} ms at 5,000")):
        ours, bare = one["ms"]["recall"][p], one["ms"]["raw at once"][p]
        name = f"recall at {one['memories']:,} memories, {p}"
        figures.append(Figure(name, ours, "ms", bare, target, _BARE))
    return figures


def _store(one: Any) -> list[Figure]:
    ours, bare = one["our_rows_per_s"], one["raw_rows_per_s"]
    figures = [Figure("upserts", ours, "rows/s", bare, "", "beside: pymilvus")]
    for title, when in (("searches", ""), ("searches_while_ingesting", ", 200 rows/s come in")):
        for size, arms in one[title].items():
            slowest = max(arms[arm]["p95_ms"] for arm in ("dense", "keyword"))
            name = f"both arms at {int(size):,} rows{when}, p95"
            target = "at most 60 ms at 5,000" if not when else ""
            both, note = arms["both"]["p95_ms"], "beside: the slower arm alone"
            figures.append(Figure(name, both, "ms", slowest, target, note))
    return [*figures, Figure("deletion", one["deletion"]["rows_per_s"], "rows/s")]


def _reconcile(one: Any) -> list[Figure]:
    figures = []
    for name in ("rules", "model", "model_with_embedding"):
        costs = one.get("growth", {}).get(name, {}).get("ms_per_atom", {})
        sizes = sorted(costs, key=int)
        for size in sizes[1:]:
            what = f"an atom by {name.replace('_', ' ')}, scope of {int(size):,}"
            target = "at most 1.5 times at 50,000"
            note = f"beside: scope of {int(sizes[0]):,}; processor time"
            figures.append(Figure(what, costs[size], "ms", costs[sizes[0]], target, note))
    if everything := one.get("duplicates", {}).get("all"):
        share = everything["near_duplicates"] / max(1, everything["active"])
        note = f"{everything['active']} atoms by rules"
        figures.append(Figure("near-duplicates left", share, "of 1", None, "at most 0.01", note))
    return figures


def _embeddings(one: Any) -> list[Figure]:
    figures = []
    for kind in ("short", "short_chinese", "long"):
        ours = one[kind]["texts_per_s"]
        alone = one[f"{kind}_engine_alone"]["texts_per_s"]
        name = f"bundled model, {kind.replace('_', ' ')} texts"
        figures.append(Figure(name, ours, "texts/s", alone, "", "beside: engine alone"))
    return [*figures, Figure("bundled model, a query, p95", one["query_ms"]["p95"], "ms")]


def _query_load(one: Any) -> list[Figure]:
    server, lite = one["server"], one["lite"]
    figures = []
    for found, where, target in (
        (server.get("latency"), f"server, {server.get('atoms', 0):,} atoms", "raw + 10 ms"),
        (lite["latency"], f"milvus-lite, {lite['memories']:,} memories", "at most 80 ms"),
    ):
        if found is not None:
            ours, bare = (found["ms"][way]["p95"] for way in ("recall", "raw"))
            figures.append(Figure(f"recall on {where}, p95", ours, "ms", bare, target, _BARE))
    if load := server.get("throughput"):
        bare = sum(load["raw_per_s"]) / len(load["raw_per_s"])
        name = f"recalls over HTTP, {load['clients']} clients"
        target = "0.7 of the searches"
        figures.append(Figure(name, load["recall_per_s"], "1/s", bare, target, _BARE))
    if growth := server.get("growth"):
        few, most = sorted(growth["sizes"], key=int)
        note = f"beside: among {int(few):,}"
        for state, found in (("just written", growth), ("sealed", growth["sealed"])):
            before, after = (found["sizes"][size]["ms"]["recall"]["p95"] for size in (few, most))
            name = f"recall in a scope of 100 among {int(most):,}, {state}, p95"
            figures.append(Figure(name, after, "ms", before, "1.5 times", note))
    return figures


_BARE = "beside: the bare searches, all at once"
_READERS: Mapping[str, Callable[[Any], list[Figure]]] = {
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
