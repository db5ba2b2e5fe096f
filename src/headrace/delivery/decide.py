"""What a command brings about: reads the state, changes nothing, answers with facts.

Refusals are replies. The one thing decide may do to the state is move messages between indexes of the same container
(look at fresh keys, open a calendar's bucket, let an id go unused): nothing that a fold of the facts would show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.delivery import commands as c
from headrace.delivery.administering import DECIDE as _ADMINISTERING
from headrace.delivery.burying import decide_bury, decide_redrive
from headrace.delivery.leasing import decide_lease
from headrace.delivery.publishing import decide_publish
from headrace.delivery.settling import decide_settle
from headrace.delivery.state import State
from headrace.delivery.ticking import decide_tick

__all__ = ["DECIDE", "decide"]

DECIDE: Final[dict[type[Any], Callable[[State, Any, int], c.Outcome]]] = {
    c.Publish: decide_publish,
    c.LeaseUpTo: decide_lease,
    c.SettleMany: decide_settle,
    c.Tick: decide_tick,
    c.Bury: decide_bury,
    c.Redrive: decide_redrive,
    **_ADMINISTERING,
}


def decide(state: State, command: c.Command, now_ns: int) -> c.Outcome:
    """The outcome of one command at ``now_ns``."""
    return DECIDE[type(command)](state, command, now_ns)
