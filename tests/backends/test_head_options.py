"""``--hybrid-head`` and ``--hybrid-messages``: what they choose, and what is refused."""

from __future__ import annotations

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import fairseq_hybrid  # noqa: F401
from fairseq_hybrid import config
from fairseq_hybrid.errors import UserError

HYBRID = ("--ddp-backend", "hybrid", "--distributed-world-size", "2", "--encoder-layers", "2")
FACTORED = ("--optimizer", "adafactor")


def resolved(*flags: str):
    common = ("data", "--task", "translation", "--arch", "hybrid_lstm", "--lr", "0.1", "--cpu")
    flags = ("--optimizer", "adam", *HYBRID, *flags)
    args = options.parse_args_and_arch(options.get_training_parser(), [*common, *flags])
    cfg = convert_namespace_to_omegaconf(args)
    config.resolve(cfg)
    config.validate(cfg)
    return cfg.distributed_training


@pytest.mark.parametrize(
    ("flags", "head"),
    [
        ((), "sliced"),
        (("--hybrid-head", "sliced"), "sliced"),
        (("--hybrid-head", "whole"), "whole"),
        (FACTORED, "whole"),
        ((*FACTORED, "--hybrid-head", "whole"), "whole"),
        (("--optimizer", "sgd"), "sliced"),
        (("--fp16", "--memory-efficient-fp16"), "sliced"),
        (("--fp16", "--fp16-no-flatten-grads"), "whole"),
        (("--ddp-backend", "legacy_ddp"), "auto"),
    ],
)
def test_where_the_head_is_cut(flags, head):
    assert resolved(*flags).hybrid_head == head


def test_messages_are_exact_unless_asked():
    assert resolved().hybrid_messages == "float32"
    assert resolved("--hybrid-messages", "bf16").hybrid_messages == "bf16"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            (*FACTORED, "--hybrid-head", "sliced"),
            "--hybrid-head sliced does not go with --optimizer adafactor, which wants matrices "
            "in one piece: use --hybrid-head whole, or leave it out",
        ),
        (
            ("--fp16", "--fp16-no-flatten-grads", "--hybrid-head", "sliced"),
            "--hybrid-head sliced does not go with --fp16 without --memory-efficient-fp16, which ",
        ),
        (("--hybrid-head", "half"), "--hybrid-head half is not known: use auto, sliced, whole"),
        (("--hybrid-messages", "fp8"), "--hybrid-messages fp8 is not known: use float32, bf16"),
    ],
    ids=lambda value: None if isinstance(value, tuple) else value[:40],
)
def test_what_cannot_work_is_one_line(flags, said):
    with pytest.raises(UserError) as error:
        resolved(*flags)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
