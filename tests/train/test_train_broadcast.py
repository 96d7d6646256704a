"""How a trainer sends: to several engines in step, and not for ever."""

import threading
import time
from dataclasses import asdict

import torch

from patchwright.engine.inside.patchwright_vllm import join, received
from patchwright.train.broadcast import Broadcast, Outgoing
from patchwright.train.ranks import Ranks

CPU = torch.device("cpu")
SENT = {f"w{number}": torch.full((3, 2), float(number)) for number in range(12)}


def listen(invitation, found, *, stalls=False, pause=0.0):
    """A worker of one engine; one that stalls takes a tensor and no more."""
    group = join(asdict(invitation), 1, CPU)
    for name, tensor in received(asdict(invitation), group, CPU):
        found[name] = tensor
        if stalls:
            return time.sleep(30)
        time.sleep(pause)


def test_engines_that_stand_still_are_given_up_together_and_slow_ones_are_not():
    tensors = [
        Outgoing(name, "float32", tuple(value.shape), lambda value=value: value)
        for name, value in SENT.items()
    ]
    sending = Broadcast(tensors, Ranks("cpu"))
    invited = sending.invite([1, 1, 1, 1], "127.0.0.1", 20.0)
    assert len({(one.port, one.group) for one in invited}) == 4
    got = [dict[str, torch.Tensor]() for _ in invited]
    for invitation, found, how in zip(
        invited[:3], got, [{"stalls": True}] * 2 + [{"pause": 0.3}], strict=False
    ):
        threading.Thread(target=listen, args=(invitation, found), kwargs=how, daemon=True).start()
    faults = sending.send()  # nobody comes to the last group
    deadline = time.monotonic() + 300
    while len(got[2]) < len(SENT) and time.monotonic() < deadline:
        time.sleep(0.05)
    sending.dismiss()  # earlier, the last tensor could get lost
    assert faults[2] == "" and faults.count("it took no part in the broadcast for 10 s") == 3
    assert got[2].keys() == SENT.keys()
    assert all(torch.equal(got[2][name], value) for name, value in SENT.items())
    assert len(got[0]) == len(got[1]) == 1
