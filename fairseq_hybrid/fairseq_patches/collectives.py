"""fairseq's collectives and wrappers on process groups that do not live on GPUs."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from fairseq import utils
from fairseq.distributed import utils as distributed_utils
from fairseq.models import distributed_fairseq_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def install_gather() -> None:
    """``all_gather_list`` allocates CUDA bytes; on gloo the objects travel through host memory."""
    on_gpu = distributed_utils.all_gather_list

    def all_gather_list(data: Any, group=None, max_size: int = 16384) -> list[Any]:
        group = group if group is not None else distributed_utils.get_global_group()
        if dist.get_backend(group) == "nccl":
            return on_gpu(data, group=group, max_size=max_size)
        gathered: list[Any] = [None] * distributed_utils.get_world_size(group)
        dist.all_gather_object(gathered, utils.move_to_cpu(data), group=group)
        return gathered

    distributed_utils.all_gather_list = all_gather_list


def install_ddp() -> None:
    """torch's DDP takes ``device_ids`` for GPUs only; fairseq always gives them."""

    def distributed_data_parallel(module: nn.Module, device_ids=None, output_device=None, **kwargs):
        if any(p.device.type == "cpu" for p in module.parameters()):
            device_ids = output_device = None
        return DistributedDataParallel(
            module, device_ids=device_ids, output_device=output_device, **kwargs
        )

    distributed_fairseq_model.DistributedDataParallel = distributed_data_parallel
