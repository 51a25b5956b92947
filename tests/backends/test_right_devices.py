"""What must be on which device, shown without a GPU: by tensors of "meta"."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from torch import nn

from fairseq_hybrid.backends.wavefront.backend import packed_targets
from fairseq_hybrid.backends.wavefront.decoupled import Stash
from fairseq_hybrid.models.lstm_layer import LSTMLayer
from fairseq_hybrid.models.packing import Packing
from fairseq_hybrid.papers.asynchronous import AsyncParallel

PAD = 1


@pytest.mark.parametrize("empty", [False, True])
def test_targets_come_from_the_host_and_go_where_the_rows_are(empty):
    """`model_parallel` exchanges words on the host and computes on a device."""
    words = torch.tensor([[4, 5, 2], [6, 2, PAD]])
    packing = Packing.from_tokens(words, PAD)
    want = [PAD] * 5 if empty else [4, 6, 5, 2, 2]
    assert packed_targets(words, packing, PAD, empty).tolist() == want
    got = packed_targets(words, packing.to(torch.device("meta")), PAD, empty)
    assert got.device.type == "meta"


def test_the_server_gets_optimizer_state_where_its_parameters_are():
    """`async`: the server computes on the host, a model and its loaded state are on a GPU."""
    mine = [nn.Parameter(torch.ones(3))]
    servers = [nn.Parameter(torch.ones(3, device="meta"))]
    loaded = {mine[0]: {"step": 4, "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}}
    theirs = Namespace(optimizer=Namespace(state={}))
    parallel = Namespace(params=mine, server=Namespace(params=servers, optimizer=theirs))
    AsyncParallel._adopt(parallel, Namespace(optimizer=Namespace(state=loaded)))
    state = theirs.optimizer.state[servers[0]]
    assert state["step"] == 4
    assert {state[key].device.type for key in ("exp_avg", "exp_avg_sq")} == {"meta"}


def test_copied_layers_are_flat_again(monkeypatch):
    """cuDNN wants an LSTM's weights in one piece of memory; a copy of each is not that."""
    flat = []
    monkeypatch.setattr(nn.LSTM, "flatten_parameters", lambda lstm: flat.append(lstm))
    layers = {"encoder": [LSTMLayer(4, 4), LSTMLayer(4, 4)], "decoder": [LSTMLayer(4, 4)]}
    flat.clear()
    stash = Stash(layers)
    assert flat == [layer.lstm for part in stash.layers.values() for layer in part]
