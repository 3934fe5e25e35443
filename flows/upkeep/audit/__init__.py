"""The audit: where did every accepted event end? Read from the topics alone.

Pure. An :class:`Audit` is fed first with the records of the outcomes topic, then with those of
the events topic, in partition order, and gives one :class:`AuditReport`. It must be fed in that
order, and the end of the events topic must be taken before the outcomes are read: then a running
flow cannot write an outcome that is missed for an event that is looked at.

What can become of a record of the events topic:

=================  ===========================================================================
extracted, empty   its window ended well, with or without memories
skipped            its window, or it alone, ended without being looked at, for a reason
dead_lettered      it was refused at the edge, or its window was given up, for a reason
forgotten          a forget request covers it, whatever it ended as before
applied            a forget or reject request that was carried out
duplicate          an earlier record has its id: that one is the event
redriven           a dead letter that came again: its event ends where it stands first
open               no outcome; by the rules of windows its window is open
pending            no outcome; its window may be closed, and its end may still be in flight
not_read           no outcome; the flow has not come to it
unexplained        no outcome, and it cannot be in flight any more: lost
conflicting        two different outcomes: the same id with two contents, or in two windows
=================  ===========================================================================

Every record is in exactly one of them. All but the last two are *explained*. The same outcome
written twice is what at-least-once means; it is counted and no fault. Attempts and pipeline
version may differ between the two, because they tell of the run and not of the end. An outcome
that was written again with another content is no fault where its dead letter was redriven: the
newest counts. A dead letter that was dropped ends as skipped. In a scope of which something was
forgotten or rejected the newest counts too: windows that lost an event, or its background, may end
otherwise when they run again.

**When is an event lost?** An outcome that is not there may come later, so its absence proves
nothing by itself. What proves it is order. Windows of a scope leave the window step in the
order in which they are closed, and extraction and reconciling are queues in that order. So

1. if a window V has an outcome of the reconcile stage, every window of its scope that was closed
   before V has left both stages, and its outcome was handed to the log no later than V's;
2. V was closed at the offset of its last event or later;
3. so an event whose window was closed for sure (:mod:`flows.upkeep.audit.order`) by the offset
   of V's last event has its outcome in the log, or was lost.

An outcome of the extract stage proves nothing about windows before it, which may be at reconcile,
nor does one that was skipped or forgotten, which never queued. A request does: it waits in both
queues like a window, so its outcome is proof as V's is, and its absence loss. A forgotten event
keeps its place where windows are cut, as in the flow. Windows that may be open prove nothing and
are never lost: a window of one session may be older than ended windows of another. Where real
windows are shorter than the rules say (``idle``, ``end_of_input``), their outcomes count and not
the rules. A record that was refused at the edge ends when it is read: it is lost when a later
record of its partition has gone through.

The outcomes of a scope have one key and lie in one partition in that order, so what was handed
over earlier is readable earlier. V counts only when it is older than ``settled_before_ms`` all the
same: outcomes and events are read one after the other while the flow writes both.

An event whose scope lies in more than one partition (a producer that does not key by scope) is
never called lost: nothing is known about its order. Nor is what comes after the newest proof: a
last window that is lost shows as pending until another one of its scope has ended.
"""

from flows.upkeep.audit.matching import Audit
from flows.upkeep.audit.report import (
    END_RESULTS,
    AuditReport,
    EndResult,
    EventEnd,
    OpenWindow,
    UnmatchedOutcome,
)

__all__ = [
    "END_RESULTS",
    "Audit",
    "AuditReport",
    "EndResult",
    "EventEnd",
    "OpenWindow",
    "UnmatchedOutcome",
]
