"""What the event model runs: the actions and messages of jobs on one network, as flat arrays.

A job's replicas have a pipeline each, with ranks, stages and messages of their own, and so has each tensor rank of a
replica; ranks are numbered job after job, replica after replica, pipeline after pipeline. Everything that travels is a
message: what stages send each other, the steps of collectives, and with late receives gloo's notices. One that is sent
in parts over several connections does not travel itself: it has come when all of its parts have, messages as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.model.network import Bools, Floats, Ints

COMPILED: tuple[str, ...] = ()
"""Nothing here is compiled; compile.py takes the constants from it."""

NONE = -1
FREE = -2
"""In `notice`: the notice takes no time and no link."""


class Program(NamedTuple):
    """Actions in rank-major program order; messages as lower.py numbers them; stages replica after replica."""

    row_start: Ints
    """Per rank (and one more), where its actions begin."""
    group: Ints
    """Per rank, the group whose actions begin together: the tensor ranks of a stage."""
    group_start: Ints
    """Per group (and one more), where its ranks begin in `together`."""
    together: Ints
    begin_s: Floats
    """Per rank, when its job begins; of no account where it waits for another iteration to end."""
    waits: Bools
    """Per rank, whether it begins when a message comes that `begins` it, and not before."""
    card: Ints
    """Per rank, the link that tensor ranks send each other over, or NONE."""
    duration_s: Floats
    """Per action, as the next nine."""
    gathered_bytes: Floats
    """What its rank sends each other tensor rank over its network card as soon as it has its input ..."""
    gathered_acks_bytes: Floats
    """... what goes back when that comes ..."""
    summed_bytes: Floats
    """... and, from the action's start on, the same of every sum. A rank begins the next one when it has what the
    others sent for the one before."""
    summed_acks_bytes: Floats
    sums: Ints
    needs: Ints
    """The message it waits for, or NONE."""
    makes: Ints
    """The message it makes, or NONE."""
    unshards: Ints
    """The stage whose parameters it needs, or NONE."""
    completes: Ints
    """The stage of which it ends one microbatch's gradients, or NONE."""
    release: Ints
    """Per message, how many things it waits for before it leaves."""
    first: Ints
    """Messages that wait for nothing ..."""
    first_s: Floats
    """... and per message, when it may leave at the earliest."""
    source: Ints
    """Per message, the rank that sends it."""
    lag_s: Floats
    """Per message, how long after it might leave it does: 0, but where other orders are tried (orders.py)."""
    card_lag_s: Floats
    """The same behind its rank's network card, which it takes in its turn with what tensor ranks send each other."""
    local: Bools
    """Per message, whether it stays on its rank, or is no message of a trace."""
    notice: Ints
    """Per message, the notice of its late receive: a message, FREE, or NONE."""
    announcement: Ints
    """Per message, gloo's notice of a send, which goes before it: a message, or NONE where it counts with its bytes."""
    then_start: Ints
    """Per message (and one more), where in `then` the messages begin that wait for its arrival."""
    then: Ints
    part_start: Ints
    """Per message (and one more), where in `parts` those begin in which it is sent: itself, where it is sent whole."""
    parts: Ints
    part_of: Ints
    """Per message, the one of which it is a part, or NONE."""
    thread: Ints
    """Per message, the thread of gloo's that takes it: every rank has one for each of its connections to another."""
    answered: Bools
    """Per message, whether gloo's thread answers it by itself: a notice."""
    begins: Ints
    """Per message, the rank that begins when it arrives, or NONE."""
    gathers: Ints
    """Per message, the stage that has one shard more of its parameters when it arrives, or NONE."""
    wire_bytes: Floats
    """Per message; of its last piece alone where it is routed in pieces."""
    piece_bytes: Floats
    """Per message, wire bytes of its other pieces; of its super-packets where it keeps together."""
    pieces: Ints
    """Per message, in how many pieces it is routed; 0 when it keeps together."""
    notice_ahead_bytes: Floats
    """Per message, how many wire bytes go ahead in a packet of their own; 0 without."""
    acks: Ints
    """Per message, how many packets and super-packets it is, each acknowledged; 0 without acknowledgements."""
    ack_bytes: Floats
    """Per message, wire bytes of one acknowledgement."""
    handover_s: Floats
    """Per message, from its last bit to its use."""
    send_s: Floats
    """Per message, what the call takes that sends it: a rank posts its next late receive behind that."""
    route: Ints
    """Per message, its route."""
    route_start: Ints
    """Per route (and one more), where its links begin in `route_links`."""
    route_links: Ints
    back: Ints
    """Per message, the route of its acknowledgements."""
    ack_queue: Ints
    """Per message, the queue of its acknowledgements where that route is one link, or two where that can be; else NONE:
    each goes by itself."""
    queue_start: Ints
    """Per link (and one more), where its queues of acknowledgements begin: one per route that is answered over it, and
    one for each stream that crosses nothing else; behind these one per link from which they go on to it, and one for
    each link that they come from and each that they go on to."""
    queue_link: Ints
    """Per queue, its link."""
    queue_onward: Ints
    """Per queue, the one of another link that its acknowledgements go on to, or NONE."""
    look_start: Ints
    """Per link (and one more), where in `looks` those begin whose queues say what is on it: others, then itself."""
    looks: Ints
    shards: Ints
    """Per stage, how many messages bring its parameters."""
    gradients: Ints
    """Per stage, how many microbatches' gradients it has to complete."""
    reduce_start: Ints
    """Per stage (and one more), where in `reduces` the messages begin that wait for its gradients."""
    reduces: Ints
    last: Ints
    """Messages that must have arrived before the iteration is over."""
    exchange_handover_s: float
    """From the last bit of what tensor ranks send each other to its use."""
    exchange_notice_bytes: float
    """With which a tensor rank, when it has what all sent, tells each other one that its next receive is posted ..."""
    exchange_notice_acks_bytes: float
    """... and what goes back when that comes."""
    wake_s: float
    """How long gloo's thread takes to answer a notice, unless something else has just woken it."""
    unnoticed_wait_s: float
    """How long a rank may wait without being delayed."""
    delay_s: Floats
    """Per link, as the next two."""
    seconds_per_byte: Floats
    change_start: Ints
    """Per link (and one more), where its changes begin in the next three, in order of time."""
    changed_at_s: Floats
    changed_delay_s: Floats
    changed_seconds_per_byte: Floats
    stamped: bool
    """Whether a packet keeps what its link is as it comes there, however that changes while it waits."""
    acknowledgements: Ints
    """Per queue, of how many messages and pieces it may have to hold the acknowledgements, of two links how many of
    these; of a stream's, its spans."""
    stream_queue: Ints
    """Per stream of datagrams, as the next two: its queue where its route is one link that stays as it is; else NONE:
    each goes by itself."""
    stream_route: Ints
    stream_bytes: Floats
    span_start: Ints
    """Per stream (and one more), where its spans begin in the next three, in order of time."""
    span_first_s: Floats
    span_every_s: Floats
    span_before_s: Floats

    def in_order(self) -> Ints:
        """The actions in the order of the rows."""
        return np.arange(len(self.duration_s))
