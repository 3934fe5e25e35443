"""The rule-based extractor: what finds memories when no model is configured.

| module | what it holds |
|---|---|
| ``clauses`` | from a message to the clauses in which the user states something |
| ``rule`` | what a rule is |
| ``english``, ``chinese`` | the tables of rules; ``english_words`` holds the word lists of one |
| ``dates`` | "next Wednesday", "上周三": resolved from when it was said |
| ``person`` | from "I moved" to "User moved" |
| ``extractor`` | the extractor that puts them together |

Everywhere a user can see it, it is called *rule-based*.
"""

from flows.rules.extractor import MAX_MEMORIES, RuleExtractor

__all__ = ["MAX_MEMORIES", "RuleExtractor"]
