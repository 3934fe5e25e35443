"""What is compared: the controls, Sediment, and Sediment without each of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from connectors.query.models import Layer
from stores.errors import UserError

__all__ = ["BASELINE", "ROWS", "Row", "rows_named"]

RowKind = Literal["nothing", "history", "plain", "recall"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the comparison.

    :arg layers: of a recall.
    :arg neighbours: messages beside a hit share in its score.
    :arg means: in words, for the report.
    """

    name: str
    kind: RowKind
    means: str
    layers: tuple[Layer, ...] = ()
    neighbours: bool = True


_ALL: tuple[Layer, ...] = ("persona", "scenes", "atoms", "events")


def _without(layer: Layer) -> Row:
    left = tuple(one for one in _ALL if one != layer)
    return Row(f"without-{layer}", "recall", f"Sediment's recall without {layer}", left)


BASELINE = "plain"
"""What all others are tested against, pair by pair."""

ROWS: tuple[Row, ...] = (
    Row("no-memory", "nothing", "the question alone"),
    Row("full-context", "history", "the whole visible history, with dates"),
    Row(
        BASELINE,
        "plain",
        "plain hybrid over raw events: BM25 and dense, reciprocal rank fusion with k = 60, "
        "nothing on top: no neighbours, weights, floor or folding",
    ),
    Row("events", "recall", "Sediment's recall over raw events alone", ("events",)),
    Row("sediment", "recall", "Sediment's recall over all layers", _ALL),
    *(_without(layer) for layer in _ALL),
    Row(
        "without-neighbours",
        "recall",
        "Sediment's recall, a hit giving nothing to the messages beside it",
        _ALL,
        neighbours=False,
    ),
)


def rows_named(names: Sequence[str]) -> tuple[Row, ...]:
    """Pick rows by name, in the order of :data:`ROWS`; none named means all.

    The baseline is always among them. Raises :class:`~stores.errors.UserError` for a name that
    is no row.
    """
    known = {row.name for row in ROWS}
    unknown = [name for name in names if name not in known]
    if unknown:
        message = f"--rows: {', '.join(unknown)} is no row; there are {', '.join(sorted(known))}"
        raise UserError(message)
    return tuple(row for row in ROWS if not names or row.name in {*names, BASELINE})
