"""Jobs for tests: a tiny model, and costs that can be worked out by hand."""

from __future__ import annotations

import torch
from hybrid_lstm_reference import tiny_model

from fairseq_hybrid.backends.wavefront.simulate import Link
from fairseq_hybrid.planner.job import BatchShape, Job, Model


def model(**options) -> Model:
    return Model(tiny_model(dtype=torch.float32, **{"encoder_layers": 4, **options}))


def job(workers: int, steps: int = 8, sentences: int = 3, **options) -> Job:
    batch = BatchShape((sentences,) * steps, (sentences,) * steps)
    return Job(model(**options), ((batch,) * workers,) * 2)


class Flat:
    """A unit of a layer takes a second forward and two back, the head five; the rest nothing."""

    projected = False
    link = Link()
    head_seconds, late_seconds = 5.0, 0.0
    number_seconds = copy_seconds = 0.0
    """of updating a number, of copying a byte"""

    def layer(self, layer, sizes, backward):
        return 2.0 if backward else 1.0

    def chunk(self, layer, sizes, backward):
        return self.layer(layer, sizes, backward)

    def weights(self, layer, sizes):
        return 0.0

    def unit(self):
        return 0.0

    prepare = unit

    def embed(self, rows, backward):
        return 0.0

    def message(self, size):
        return 0.0

    def head(self, model, batch, backward):
        return self.head_seconds if backward else 0.0

    def late(self, model, batch):
        return self.late_seconds

    def copy(self, size):
        return self.copy_seconds * size

    def update(self, numbers):
        return self.number_seconds * numbers

    def all_reduce(self, workers, size=0.0):
        return size / self.link.bandwidth

    def rest(self, workers):
        return 0.0

    def slow_down(self, kind, busy):
        return 1.0
