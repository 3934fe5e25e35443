"""Reconcile: what a scope's new atoms do to the ones it already has.

| module | what it holds |
|---|---|
| ``items`` | what goes in and comes out |
| ``sameness`` | when two texts say the same, when one denies the other |
| ``statements`` | what an atom stands on; two atoms as one |
| ``units`` | the atoms of a scope with their indexes; who takes whose place when |
| ``scope`` | one window's atoms into their scope |
| ``forgetting`` | forget and reject requests |
| ``candidates`` | exact search of what a new atom may be about |
| ``question`` | what a model is asked, and how its answer is read |
| ``judge`` | candidates, question and model together |
| ``warm`` | the scopes in use, kept in memory |
| ``whole`` | several rows as one write |
| ``stage`` | the stage's work |

All up to ``question`` is pure. Without a model the rules of ``sameness`` and ``units`` decide
alone: the same words again make no second atom, a newer value of a slot and a plain denial
supersede, an end that lies behind makes stale. A model is asked about the rest.
"""

from flows.reconcile.items import REFUSALS, Applied, Decision, Leaving, NewAtoms, StoredAtoms
from flows.reconcile.sameness import normalised
from flows.reconcile.scope import ScopeAtoms
from flows.reconcile.stage import Reconciler
from flows.reconcile.warm import WarmScope, WarmScopes

__all__ = [
    "REFUSALS",
    "Applied",
    "Decision",
    "Leaving",
    "NewAtoms",
    "Reconciler",
    "ScopeAtoms",
    "StoredAtoms",
    "WarmScope",
    "WarmScopes",
    "normalised",
]
