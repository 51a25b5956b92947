"""Where parameters live: the stages that compute with them, and those that own which rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from fairseq_hybrid.backends.wavefront.ownership import Rows, all_of
from fairseq_hybrid.models.parallel_parts import ParallelParts


def users_of(
    parameters: Iterable[nn.Parameter],
    parts: ParallelParts,
    ranges: Sequence[range],
    head_on_last: bool,
) -> dict[nn.Parameter, set[int]]:
    """Parameter → the stages that compute with it."""
    users: dict[nn.Parameter, set[int]] = {p: set() for p in parameters}
    last = len(ranges) - 1
    heads = {last} if head_on_last else set(range(last + 1))

    def use(module: nn.Module, stages: set[int]) -> None:
        for p in module.parameters():
            users[p] |= stages

    for stage, layers in enumerate(ranges):
        for i in layers:
            use(parts.encoder_layers[i], {stage})
            use(parts.decoder_layers[i], {stage} if parts.decoder_splits else heads)
    use(parts.source_embedding, {0})
    use(parts.target_embedding, {0} if parts.decoder_splits else heads)
    use(parts.head, heads)
    return users


def owned_rows(
    users: Mapping[nn.Parameter, set[int]],
    parts: ParallelParts,
    stages: int,
    slices: bool | Sequence[float] = True,
) -> dict[nn.Parameter, Rows]:
    """Who keeps gradient and optimizer state of which rows.

    What one stage uses it owns. Embeddings that stage 0 looks words up in when an update begins are
    its own. What several stages use is cut into `slices`, so that all own about as much in the end
    (or in these shares); without slices, and for layers, whose kernels want their weights in one
    piece, each goes to the user with the least to keep so far.
    """
    first = {id(parts.source_embedding.weight)}
    if parts.decoder_splits:
        first.add(id(parts.target_embedding.weight))
    layers = {id(p) for layer in parts.decoder_layers for p in layer.parameters()}
    rows: dict[nn.Parameter, Rows] = {}
    to_cut: list[nn.Parameter] = []
    load: dict[int, float] = defaultdict(float)
    for p, stages_of_it in sorted(users.items(), key=lambda u: (len(u[1]), -u[0].numel())):
        alone = len(stages_of_it) < 2 or id(p) in first or id(p) in layers
        if not alone and slices is not False and len(stages_of_it) == stages:
            to_cut.append(p)
            continue
        owner = 0 if id(p) in first else min(stages_of_it or {0}, key=lambda s: (load[s], -s))
        rows[p] = all_of(p, owner, stages)
        load[owner] += p.numel()
    shares = slices if isinstance(slices, Sequence) else _leveled(
        [load[s] for s in range(stages)], sum(p.numel() for p in to_cut)
    )  # fmt: skip
    rows.update({p: cut(p.size(0), shares) for p in to_cut})
    return rows


def _leveled(load: Sequence[float], more: float) -> list[float]:
    """Shares of `more` with which everybody has the same, as far as nobody has too much already."""
    level, taken = 0.0, sorted(load)
    for count in range(1, len(taken) + 1):
        level = (more + sum(taken[:count])) / count
        if count == len(taken) or level <= taken[count]:
            break
    return [max(0.0, level - mine) / more if more else 0.0 for mine in load]


def cut(rows: int, shares: Sequence[float]) -> Rows:
    """Rows in about these shares, one after the other."""
    ends, total, found = [0], sum(shares), 0.0
    for share in shares:
        found += share
        ends.append(round(rows * found / total) if total else 0)
    ends[-1] = rows
    return tuple(range(begin, end) for begin, end in zip(ends, ends[1:]))
