"""``--ddp-backend async``: workers that do not wait for each other (asynchronous SGD).

Worker 0 also keeps the parameters and the optimizer (`Server`). A worker fetches the parameters,
computes a gradient on its own batch, and sends it; the server makes an update with each gradient as
it comes. So a gradient is of parameters that others may have changed since: by at most
``--async-staleness`` updates of this worker more than the slowest has made. It is the baseline of
Xiao et al. (2017). With ``--criterion sampled_softmax`` only rows travel, in both directions:
those of the words read and of the sample, which is each worker's own.

Validation and checkpoints see the server's parameters, after all gradients have been used
(`drain`). Workers make equally many updates per epoch, each with its own batch and the learning
rate of worker 0; losses in the log are worker 0's. Messages go through host memory, over gloo.

    fairseq-train ... --ddp-backend async --distributed-world-size 2
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Sequence
from multiprocessing import util
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fairseq_hybrid.backends.base import Backend
from fairseq_hybrid.backends.registry import register_backend
from fairseq_hybrid.comm.transport import flatten
from fairseq_hybrid.launch.worker import teardown_hooks
from fairseq_hybrid.optim.optimizer import HybridOptimizer
from fairseq_hybrid.optim.rows import sparse_rows
from fairseq_hybrid.options import LOW_PRECISION, add_option, at_least, backend

PUSH, PULL, FLUSH, STOP = range(4)
WHOLE = -1
"""number of rows that means: all of them, in order"""

Rows = Sequence["Tensor | None"]
"""for each parameter the rows that are meant; None: all"""


add_option(
    "async_staleness", int, 4,
    "updates that a worker may be ahead of the slowest one (--ddp-backend async)",
    **at_least(0, "updates"), needs=(backend("async"),),
)  # fmt: skip


@register_backend(
    "async",
    help="workers that send gradients and fetch parameters without waiting",
    without=(*LOW_PRECISION, "use_bmuf", "store_ema"),
)
def build(cfg, model, process_group, device):
    return AsyncParallel(model.to(device), staleness=cfg.async_staleness)


class Server:
    """Parameters and optimizer of all; every method may be called from several threads."""

    def __init__(self, params: Sequence[nn.Parameter], workers: int, staleness: int):
        self.params = [nn.Parameter(p.detach().cpu().clone()) for p in params]
        self.staleness, self.clock = staleness, [0] * workers
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        self.optimizer: Any = None
        self.learning_rate: Callable[[], float] = lambda: 0.0

    def push(self, worker: int, grads: Sequence[Tensor | None]) -> None:
        """One update."""
        with self.changed:
            for p, grad in zip(self.params, grads):
                p.grad = grad
            self.optimizer.set_lr(self.learning_rate())
            self.optimizer.step()
            for p in self.params:
                p.grad = None
            self.clock[worker] += 1
            self.changed.notify_all()

    def pull(self, worker: int, rows: Rows) -> list[Tensor]:
        """Copies, once this worker is not too far ahead."""
        with self.changed:
            self.changed.wait_for(lambda: self.error or self._ahead(worker) <= self.staleness)
            if self.error:
                raise RuntimeError("the server of the parameters has failed") from self.error
            data = [p.detach() for p in self.params]
            return [d.clone() if r is None else d[r] for d, r in zip(data, rows)]

    def _ahead(self, worker: int) -> int:
        return self.clock[worker] - min(self.clock)

    def fail(self, error: BaseException) -> None:
        """Nobody waits any longer."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()


class Wire:
    """Gradients and parameters as messages: a header, rows, numbers."""

    def __init__(self, params: Sequence[Tensor], peer: int, group: Any):
        self.params, self.peer, self.group = params, peer, group
        self.under_way: list[tuple[Any, Tensor]] = []
        self.bytes = 0

    def send(self, kind: int, rows: Rows, values: Sequence[Tensor] = ()) -> None:
        """Returns before it has arrived."""
        self.finish()
        counts = [WHOLE if r is None else r.numel() for r in rows]
        self._post(torch.tensor([kind, *counts]))
        chosen = [r for r in rows if r is not None]
        if sum(r.numel() for r in chosen):
            self._post(torch.cat(chosen))
        if values:
            self.send_values(values)

    def send_values(self, values: Sequence[Tensor]) -> None:
        if any(v.numel() for v in values):
            self._post(flatten(list(values)))

    def _post(self, tensor: Tensor) -> None:
        self.bytes += tensor.numel() * tensor.element_size()
        self.under_way.append((dist.isend(tensor, self.peer, group=self.group), tensor))

    def finish(self) -> None:
        under_way, self.under_way = self.under_way, []
        for work, _ in under_way:
            work.wait()

    def receive(self) -> tuple[int, list[Tensor | None]]:
        """The kind of a message and its rows."""
        header = self._get(torch.empty(1 + len(self.params), dtype=torch.long))
        kind, *counts = header.tolist()
        total = sum(c for c in counts if c > 0)
        rows = self._get(torch.empty(total, dtype=torch.long)) if total else header[:0]
        found: list[Tensor | None] = []
        for count in counts:
            found.append(None if count == WHOLE else rows[:count])
            rows = rows[max(count, 0) :]
        return kind, found

    def receive_values(self, rows: Rows) -> list[Tensor]:
        shapes = [
            p.shape if r is None else torch.Size((r.numel(), *p.shape[1:]))
            for p, r in zip(self.params, rows)
        ]
        total = sum(shape.numel() for shape in shapes)
        flat = torch.empty(total, dtype=self.params[0].dtype)
        if total:
            self._get(flat)
        parts = flat.split([shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes)]

    def receive_answer(self) -> None:
        self._get(torch.empty(1))

    def _get(self, tensor: Tensor) -> Tensor:
        dist.recv(tensor, self.peer, group=self.group)
        self.bytes += tensor.numel() * tensor.element_size()
        return tensor


def serve(server: Server, wire: Wire, worker: int) -> None:
    """A thread of worker 0: what another worker asks for, until it stops."""
    try:
        while True:
            kind, rows = wire.receive()
            if kind == STOP:
                # At the end nobody asks any more; earlier, others would wait for its updates.
                return server.fail(EOFError(f"worker {worker} has left"))
            if kind == PUSH:
                values = wire.receive_values(rows)
                server.push(worker, as_gradients(server.params, rows, values))
            else:
                values = [] if kind == FLUSH else server.pull(worker, rows)
                wire.finish()
                wire.send_values(values if kind == PULL else [torch.zeros(1)])
    except BaseException as error:
        server.fail(error)


def as_gradients(params: Sequence[Tensor], rows: Rows, values: Sequence[Tensor]) -> list[Tensor]:
    return [v if r is None else sparse_rows(r, v, p) for p, r, v in zip(params, rows, values)]


class AsyncParallel(Backend):
    """The model, with parameters fetched when they are needed and gradients sent away."""

    synchronous = mean_gradients = False
    saves_together = takes_row_gradients = True

    def __init__(self, module: nn.Module, *, staleness: int):
        super().__init__(module)
        self.params = [p for p in module.parameters() if p.requires_grad]
        self.rank = dist.get_rank()
        self.group = dist.new_group(backend="gloo")
        self.by_rows = False
        self.server: Server | None = None
        self.wires: list[Wire] = []
        self.threads: list[threading.Thread] = []
        if self.rank == 0:
            self.server = Server(self.params, self.world, staleness)
            self.wires = [
                Wire(self.server.params, peer, self.group) for peer in range(1, self.world)
            ]
        else:
            self.wires = [Wire([p.detach().cpu() for p in self.params], 0, self.group)]

    def attach(self, optimizer: HybridOptimizer, criterion: nn.Module) -> None:
        super().attach(optimizer, criterion)
        mine = None if self.server is None else optimizer.like_this(self.server.params)
        self.start(mine, optimizer.get_lr)

    def start(self, optimizer: Any, learning_rate: Callable[[], float]) -> None:
        """On worker 0, with an optimizer of `server.params`; on the others with nothing."""
        if self.server is not None:
            self.server.optimizer, self.server.learning_rate = optimizer, learning_rate
            for peer, wire in enumerate(self.wires, start=1):
                thread = threading.Thread(target=serve, args=(self.server, wire, peer), daemon=True)
                thread.start()
                self.threads.append(thread)
        # Before the group of processes is destroyed: later nobody can be told anything. Where that
        # is not reached, before the process leaves (not by atexit: workers are children).
        teardown_hooks.append(util.Finalize(None, self.stop, exitpriority=100))

    def stop(self) -> None:
        """The last thing a worker says; worker 0 stays until all have said it."""
        if self.server is None:
            with contextlib.suppress(RuntimeError):
                self.wires[0].send(STOP, [torch.empty(0, dtype=torch.long)] * len(self.params))
                self.wires[0].finish()
        else:
            self.server.fail(EOFError("worker 0 has left"))
        for thread in self.threads:
            thread.join()
        self.threads = []

    # Training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.training and torch.is_grad_enabled():
            self._fetch(self._needed(kwargs) if self.by_rows else [None] * len(self.params))
        return super().forward(*args, **kwargs)

    def _needed(self, net_input: dict[str, Any]) -> list[Tensor | None]:
        """Rows of the words that are read, nothing yet of the softmax, all of the rest."""
        rows = {p: None for p in self.params}
        for p in self.module.softmax_parameters():
            if p is not None and p.dim() > 1:
                rows[p] = torch.empty(0, dtype=torch.long)
        for p, words in self.module.rows_read(**net_input).items():
            if p in rows:
                rows[p] = words.unique().cpu()
        return [rows[p] for p in self.params]

    def use_row_gradients(self) -> None:
        self.by_rows = True
        self.module.use_row_gradients()

    def note_sample(self, words_S: Tensor) -> None:
        """The words whose output weights will be used next."""
        none = torch.empty(0, dtype=torch.long)
        softmax = [p for p in self.module.softmax_parameters() if p is not None and p.dim() > 1]
        wanted = {id(p) for p in softmax}
        self._fetch([words_S.cpu() if id(p) in wanted else none for p in self.params])

    @torch.no_grad()
    def _fetch(self, rows: Rows) -> None:
        for p, r, new in zip(self.params, rows, self._pull(rows)):
            if r is None:
                p.copy_(new)
            elif r.numel():
                p.index_copy_(0, r.to(p.device), new.to(p.device))

    def _pull(self, rows: Rows) -> list[Tensor]:
        if self.server is not None:
            return self.server.pull(0, rows)
        wire = self.wires[0]
        wire.send(PULL, rows)
        return wire.receive_values(rows)

    def apply_gradients(self, step: Callable[[], None]) -> None:
        self.push()

    @torch.no_grad()
    def push(self) -> None:
        """Send the gradients away."""
        rows: list[Tensor | None] = []
        values = []
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if p.grad.is_sparse:
                p.grad = p.grad.coalesce()
                rows.append(p.grad.indices()[0].cpu())
                values.append(p.grad.values().cpu())
            else:
                rows.append(None)
                values.append(p.grad.cpu())
        if self.server is None:
            self.wires[0].send(PUSH, rows, values)
        else:
            copies = [v.clone() for v in values]
            self.server.push(0, as_gradients(self.server.params, rows, copies))

    def all_reduce_grads(self) -> None:
        """Nobody waits for anybody's gradients."""

    # Everybody together

    def full_parameters(self, optimizer: HybridOptimizer, *averages: Any) -> None:
        """Wait until all gradients have been used, and fetch the parameters."""
        self.flush()

    def flush(self) -> None:
        if self.server is None:
            wire = self.wires[0]
            wire.send(FLUSH, [torch.empty(0, dtype=torch.long)] * len(self.params))
            wire.receive_answer()
        dist.barrier(group=self.group)
        self._fetch([None] * len(self.params))
        dist.barrier(group=self.group)

    def optimizer_state(self, optimizer: HybridOptimizer) -> dict[str, Any] | None:
        """A copy of the server's: when everybody goes on it changes while it is written."""
        state = None
        if self.server is not None:
            servers = self.server.optimizer.optimizer.state
            for p, q in zip(self.params, self.server.params):
                optimizer.optimizer.state[p] = copy.deepcopy(servers[q])
            state = optimizer.state_dict()
        dist.barrier(group=self.group)
        return state

    def load_optimizer_state(self, optimizer: HybridOptimizer) -> None:
        """Let the server go on from the model's parameters and the state of `optimizer`."""
        if self.server is not None:
            self._adopt(optimizer)
        dist.barrier(group=self.group)

    def _adopt(self, optimizer: HybridOptimizer) -> None:
        assert self.server is not None
        for p, q in zip(self.params, self.server.params):
            q.data.copy_(p.detach())
            state = optimizer.optimizer.state.pop(p, None)
            if state is not None:  # of a model on a GPU; the server computes on the host
                self.server.optimizer.optimizer.state[q] = {
                    k: v.to(q.device) if torch.is_tensor(v) else v for k, v in state.items()
                }

    @property
    def bytes_sent(self) -> float:
        """In the log: of all workers, both ways, counted on worker 0 (so a share of each)."""
        return sum(wire.bytes for wire in self.wires) / self.world
