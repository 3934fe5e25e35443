"""The quality gate: what an extractor proposes is looked at before it becomes an atom.

In the order in which a memory meets them:

| module | what it holds |
|---|---|
| ``subject`` | what a rule looks at: one memory, and what the user said |
| ``secrets`` | keys, tokens, passwords, card, account and identity numbers |
| ``orders`` | text aimed at an agent, and text that claims a person's approval |
| ``stages`` | an incident told in stages |
| ``periods`` | several time periods or changes in one; old and new state in one |
| ``lasting`` | an instruction for one task told as a standing one; doubtful types |
| ``policy`` | the rules, their modes, and what a memory's findings come to |
| ``split`` | one memory into several short ones: by a model, or by sentence |
| ``gate`` | the gate itself: an extraction in, what may become atoms out |
| ``naming`` | whose fact it is, behind the gate: the name for "user" |
| ``recheck`` | the same rules, tried on atoms that are stored already |

Every rule is a pure function: no clock, no network, the same answer every time. Rules would
rather miss a fault than refuse a good memory.
"""

from flows.gate.gate import Gate, Gated, Passed
from flows.gate.policy import GatePolicy, examine
from flows.gate.split import ModelSplitter, RuleSplitter, Splitter
from flows.gate.subject import Subject

__all__ = [
    "Gate",
    "GatePolicy",
    "Gated",
    "ModelSplitter",
    "Passed",
    "RuleSplitter",
    "Splitter",
    "Subject",
    "examine",
]
