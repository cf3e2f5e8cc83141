"""Which functions O1 casts, and how. Lists are per namespace: F.softmax is listed, torch.softmax is not.

Source: `apex/amp/lists/{functional,torch,tensor}_overrides.py` at the last commit that had them; LATER and
MODULES say how the functions run that its lists did not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import torch.backends.mha
import torch.nn.functional as F
import torch.utils.checkpoint as checkpointing

CONVOLUTIONS = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc".split()

FUNCTIONAL_HALF = [*CONVOLUTIONS, "linear"]
FUNCTIONAL_FLOAT = (
    "interpolate grid_sample softplus softmin log_softmax softmax gelu "
    "layer_norm group_norm local_response_norm normalize cosine_similarity "
    "poisson_nll_loss cosine_embedding_loss cross_entropy hinge_embedding_loss kl_div l1_loss mse_loss "
    "margin_ranking_loss multilabel_margin_loss multilabel_soft_margin_loss multi_margin_loss nll_loss "
    "binary_cross_entropy_with_logits smooth_l1_loss soft_margin_loss triplet_margin_loss ctc_loss"
).split()
FUNCTIONAL_BANNED = ["binary_cross_entropy"]

TORCH_HALF = [*CONVOLUTIONS, *"prelu addmm addmv addr matmul mm mv addbmm baddbmm bmm".split()]
TORCH_FLOAT = (
    "acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt sinh tan pow "
    "cumprod cumsum dist norm prod std sum var renorm"
).split()
TORCH_PROMOTE = "addcdiv addcmul atan2 cross bilinear dot add div mul eq equal ge gt le lt ne".split()
# `cat` and `stack`, which apex promoted, promote {half, float} by themselves now.

TENSOR_HALF = [*TORCH_HALF, "__matmul__"]
TENSOR_FLOAT = [*TORCH_FLOAT, "__pow__", "__rpow__", "__ipow__", "cpu"]
TENSOR_PROMOTE = [
    *TORCH_PROMOTE,
    *(f"__{side}{name}__" for name in ("add", "sub", "mul", "div", "truediv") for side in ("", "r")),
    *(f"__{name}__" for name in ("eq", "ge", "gt", "le", "lt", "ne")),
]
TENSOR_PROMOTE_IN_PLACE = [f"__i{name}__" for name in ("add", "sub", "mul", "div", "truediv")]

# PyTorch made one function of what apex saw in parts. The fused one gives what the parts gave: attention is a
# product, a softmax and a product (half, fp32 within, half), an RMS norm begins with a power (fp32).
LATER: list[tuple[Any, str, str]] = [
    (F, "scaled_dot_product_attention", "attention"),
    (torch, "baddbmm", "attention"),
    (F, "rms_norm", "float"),
    (torch, "vdot", "promote"),  # spectral norm's, which was `dot`
]
# What recurrent and attention modules reach PyTorch by, and activation checkpointing: both its kinds look
# these names up in its module, also when the user imported `checkpoint` by name before. The generator got its
# `_impl` between PyTorch 2.11 and 2.14.
GENERATOR = "_checkpoint_without_reentrant_generator"
HAS_IMPL = hasattr(checkpointing, f"{GENERATOR}_impl")
MODULES: list[tuple[Any, str, str]] = [
    *((torch._VF, name, "recurrent") for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
    *((torch._VF, f"{name}_cell", "half") for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
    (torch.nn.RNNBase, "check_input", "recurrent_input"),
    (torch.backends.mha, "get_fastpath_enabled", "slow"),
    (checkpointing.CheckpointFunction, "apply", "again"),
    (checkpointing, f"{GENERATOR}_impl" if HAS_IMPL else GENERATOR, "again"),
]


def entries() -> Iterator[tuple[Any, str, str]]:
    """Every (namespace, name, rule) that exists in this PyTorch; of two for one name the later counts.

    Rules: half, float, promote, banned; for methods that change their tensor, match (cast the other arguments
    to its type) and refuse (an fp32 function cannot write into a half tensor); the rest is said in `rules`,
    and `again` in `patches`.
    """
    lists: list[tuple[ModuleType | type, list[str], str]] = [
        (F, FUNCTIONAL_HALF, "half"),
        (F, FUNCTIONAL_FLOAT, "float"),
        (F, FUNCTIONAL_BANNED, "banned"),
        (torch, TORCH_HALF, "half"),
        (torch, TORCH_FLOAT, "float"),
        (torch, TORCH_PROMOTE, "promote"),
        (torch.Tensor, TENSOR_HALF, "half"),
        (torch.Tensor, TENSOR_FLOAT, "float"),
        (torch.Tensor, TENSOR_PROMOTE, "promote"),
        (torch.Tensor, TENSOR_PROMOTE_IN_PLACE, "match"),
        (torch.Tensor, _in_place(TENSOR_HALF), "match"),
        (torch.Tensor, _in_place(TENSOR_PROMOTE), "match"),
        (torch.Tensor, _in_place(TENSOR_FLOAT), "refuse"),
        (torch, _in_place(TORCH_HALF), "match"),
        (torch, _in_place(TORCH_PROMOTE), "match"),
        (torch, _in_place(TORCH_FLOAT), "refuse"),
    ]
    for namespace, names, rule in lists:
        for name in names:
            if hasattr(namespace, name):
                yield namespace, name, rule
    yield from LATER
    yield from MODULES


def _in_place(names: list[str]) -> list[str]:
    return [f"{name}_" for name in names if not name.startswith("__")]
