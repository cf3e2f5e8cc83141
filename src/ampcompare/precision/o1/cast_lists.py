"""The lists of functions that O1 casts, with the rule for each.

Lists are per namespace: F.softmax is listed, torch.softmax is not. Source:
`apex/amp/lists/{functional,torch,tensor}_overrides.py` at the last commit that had them. FUSED and INTERNALS
have functions that did not exist in apex's time.
"""

from typing import Any

import torch
import torch.backends.mha
import torch.nn.functional as F
import torch.utils.checkpoint as checkpointing
from torch.autograd.function import BackwardCFunction
from torch.utils.hooks import BackwardHook

CONVOLUTIONS = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc".split()

FUNCTIONAL_HALF = [*CONVOLUTIONS, "linear"]
FUNCTIONAL_FLOAT = (
    "interpolate grid_sample softplus softmin log_softmax softmax gelu "
    "layer_norm group_norm local_response_norm normalize cosine_similarity "
    "poisson_nll_loss cosine_embedding_loss cross_entropy hinge_embedding_loss kl_div l1_loss mse_loss "
    "margin_ranking_loss multilabel_margin_loss multilabel_soft_margin_loss multi_margin_loss nll_loss "
    "binary_cross_entropy_with_logits smooth_l1_loss soft_margin_loss triplet_margin_loss ctc_loss"
).split()

TORCH_HALF = [*CONVOLUTIONS, *"prelu addmm addmv addr matmul mm mv addbmm baddbmm bmm".split()]
TORCH_FLOAT = (
    "acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt sinh tan pow "
    "cumprod cumsum dist norm prod std sum var renorm"
).split()
TORCH_PROMOTE = "addcdiv addcmul atan2 cross bilinear dot add div mul eq equal ge gt le lt ne".split()
# apex also promoted for `cat` and `stack`, which now promote {half, float} themselves.

TENSOR_HALF = [*TORCH_HALF, "__matmul__"]
TENSOR_FLOAT = [*TORCH_FLOAT, "__pow__", "__rpow__", "__ipow__", "cpu"]
TENSOR_PROMOTE = [
    *TORCH_PROMOTE,
    *(f"__{side}{name}__" for name in ("add", "sub", "mul", "div", "truediv") for side in ("", "r")),
    *(f"__{name}__" for name in ("eq", "ge", "gt", "le", "lt", "ne")),
]
TENSOR_PROMOTE_IN_PLACE = [f"__i{name}__" for name in ("add", "sub", "mul", "div", "truediv")]
CAST_TO_TARGET = "cast_to_target_dtype"
REFUSE_16_BIT = "refuse_16_bit_target"
# Namespace, names, the rule of the functions, and the rule of their in-place variants.
LISTS: list[tuple[Any, list[str], str, str]] = [
    (F, FUNCTIONAL_HALF, "half", CAST_TO_TARGET),
    (F, FUNCTIONAL_FLOAT, "float", REFUSE_16_BIT),
    (torch, TORCH_HALF, "half", CAST_TO_TARGET),
    (torch, TORCH_FLOAT, "float", REFUSE_16_BIT),
    (torch, TORCH_PROMOTE, "promote", CAST_TO_TARGET),
    (torch.Tensor, TENSOR_HALF, "half", CAST_TO_TARGET),
    (torch.Tensor, TENSOR_FLOAT, "float", REFUSE_16_BIT),
    (torch.Tensor, TENSOR_PROMOTE, "promote", CAST_TO_TARGET),
]

# Functions that PyTorch has fused since. Each has the dtype that its parts had under apex: attention is a
# product, a softmax and a product (half, fp32, half); an RMS norm begins with a power (fp32).
FUSED: list[tuple[Any, str, str]] = [
    (F, "scaled_dot_product_attention", "attention"),
    (torch, "baddbmm", "attention"),
    (F, "rms_norm", "float"),
    (torch, "vdot", "promote"),  # of spectral norm, which used `dot`
]
# Internal functions of recurrent modules, attention modules, activation checkpointing, and of Python code
# that autograd runs in the backward: custom functions and hooks. Both kinds of checkpointing look these names
# up in their module, even if the user has imported `checkpoint` by name. The generator was renamed to
# `..._impl` between PyTorch 2.11 and 2.14, which also added `apply_boxed`.
GENERATOR = "_checkpoint_without_reentrant_generator"
HAS_IMPL = hasattr(checkpointing, f"{GENERATOR}_impl")
INTERNALS: list[tuple[Any, str, str]] = [
    *((torch._VF, name, "recurrent") for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
    *((torch._VF, f"{name}_cell", "half") for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
    (torch.nn.RNNBase, "check_input", "recurrent_input"),
    (torch.backends.mha, "get_fastpath_enabled", "no_fast_path"),
    (checkpointing.CheckpointFunction, "apply", "carry_casts"),
    (checkpointing, f"{GENERATOR}_impl" if HAS_IMPL else GENERATOR, "carry_casts"),
    (BackwardCFunction, "__init__", "remember_casts"),
    (BackwardCFunction, "apply", "restore_casts"),
    (BackwardCFunction, "apply_boxed", "restore_casts"),
    (torch.Tensor, "register_hook", "carry_casts_to_hooks"),
    (BackwardHook, "__init__", "carry_casts_to_hooks"),
]


def list_entries() -> list[tuple[Any, str, str]]:
    """Return every (namespace, name, rule) that exists in this PyTorch.

    A later entry for a name overrides an earlier one. In-place functions have their own rules. Their target
    keeps its dtype, so `cast_to_target_dtype` casts the other arguments. An fp32 function cannot write into a
    16-bit tensor, so `refuse_16_bit_target` raises.
    """
    listed: list[tuple[Any, str, str]] = [(F, "binary_cross_entropy", "banned")]
    listed += [(torch.Tensor, name, CAST_TO_TARGET) for name in TENSOR_PROMOTE_IN_PLACE]
    for namespace, names, rule, in_place in LISTS:
        listed += [(namespace, name, rule) for name in names]
        listed += [(namespace, f"{name}_", in_place) for name in names if not name.startswith("__")]
    return [entry for entry in (*listed, *FUSED, *INTERNALS) if hasattr(entry[0], entry[1])]
