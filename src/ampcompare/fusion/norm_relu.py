"""BatchNorm, the sum with a residual and ReLU as one op, forward and backward, of Inductor's own kernels.

In training the forward reads its input twice (sums, result) and the residual once; the backward reads
gradient and input twice, with a residual also the output, which the next convolution keeps anyway: the ReLU
keeps nothing of its own.

Why not `torch.compile` over the three lines, which was tried first (torch 2.14.1): it keeps a mask of the
ReLU (a byte a value, written and read) and, in fp16, mean and deviation in fp16; its guards cost 50
microseconds a forward and 30 a backward, of which ResNet50 has 49 each; and it gives up at the ninth shape,
where ResNet50 has 11. So forward and backward are written down here, and its compiler, Inductor, makes each
into code for the shapes that come by, which are looked up in a dictionary: 7 microseconds a call. PyTorch
itself has no such op for training; cuDNN has one, but it is not in PyTorch's interface.

Everything is computed in fp32 and rounded once, where one op after the other rounds after each.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampcompare.fusion.compiled import define


def norm_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(norm(x) + residual), of x's type, as `norm` in its mode does it, but for its counter of batches.

    x and residual are [B, C, H, W], both fp32 or both half. Can be differentiated twice. Raises ValueError,
    as PyTorch does, for a training batch of one value a channel.
    """
    given = (x, residual, norm.weight, norm.bias, norm.running_mean, norm.running_var)
    if norm.training:
        return _NormRelu.apply(*given, norm.momentum, norm.eps)
    if torch.is_grad_enabled():  # nobody trains like that here
        y = norm_alone(norm, x)
        return F.relu(y if residual is None else y + residual)
    return torch.ops.ampcompare.norm_relu_eval(*given, norm.eps)


def norm_alone(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """What a BatchNorm as torchvision makes it computes, but for its counter of batches."""
    assert norm.momentum is not None  # `fuse_model` leaves others alone
    statistics, affine = (norm.running_mean, norm.running_var), (norm.weight, norm.bias)
    return F.batch_norm(x, *statistics, *affine, norm.training, norm.momentum, norm.eps)


class _NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, *others: Any
    ) -> Tensor:
        y, mean, inverse = torch.ops.ampcompare.norm_relu(x, residual, weight, bias, *others)
        ctx.save_for_backward(x, weight, bias, mean, inverse, None if residual is None else y)
        ctx.eps = others[-1]
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, bias, mean, inverse, y = ctx.saved_tensors
        if torch.is_grad_enabled():
            dx, d_residual, d_weight, d_bias = _differentiable_backward(dy, x, y, weight, bias, ctx.eps)
        else:
            last = x.is_contiguous(memory_format=torch.channels_last)
            dy = dy.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
            found = torch.ops.ampcompare.norm_relu_backward(dy, x, y, weight, bias, mean, inverse)
            (dx, d_weight, d_bias), d_residual = found[:3], found[3] if y is not None else None
        return dx, d_residual, d_weight, d_bias, None, None, None, None


def _differentiable_backward(
    dy: Tensor, x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor | None, ...]:
    """The gradients by ops that have gradients themselves: for a penalty on gradients."""
    normed = F.batch_norm(x, None, None, weight, bias, training=True, eps=eps)
    gradient = torch.where(~((normed if y is None else y) <= 0), dy, torch.zeros_like(dy))
    inputs = (x, weight, bias)
    wanted = [t for t in inputs if t.requires_grad]
    found = iter(torch.autograd.grad(normed, wanted, gradient, create_graph=True))
    dx, d_weight, d_bias = (next(found) if t.requires_grad else None for t in inputs)
    return dx, None if y is None else gradient, d_weight, d_bias


def _training(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and fp32 mean and 1 / deviation of the batch, [C] each. Moves the running statistics."""
    running_mean, running_var, momentum, eps = others
    F._verify_batch_size(list(x.shape))  # type: ignore[attr-defined]
    count = x.numel() // x.shape[1]
    wide = x.float()
    var, mean = torch.var_mean(wide, (0, 2, 3), correction=0)
    inverse = torch.rsqrt(var + eps)
    running_mean.copy_(running_mean.float() * (1 - momentum) + mean * momentum)
    running_var.copy_(running_var.float() * (1 - momentum) + var * (momentum * count / (count - 1)))
    return _result(wide, residual, _normed(wide, weight, bias, mean, inverse), x.dtype), mean, inverse


def _evaluation(x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, *others: Any) -> Tensor:
    running_mean, running_var, eps = others
    wide, inverse = x.float(), torch.rsqrt(running_var.float() + eps)
    return _result(wide, residual, _normed(wide, weight, bias, running_mean, inverse), x.dtype)


def _backward(
    dy: Tensor, x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of x, weight, bias, and of the residual if there was one (then y is there)."""
    wide = x.float()
    # Not `> 0`: a nan passes the gradient on, as PyTorch's ReLU does.
    passed = ~((_normed(wide, weight, bias, mean, inverse).to(x.dtype) if y is None else y) <= 0)
    gradient = torch.where(passed, dy.float(), 0.0)
    standard = (wide - _wide(mean)) * _wide(inverse)
    d_bias, d_weight = gradient.sum((0, 2, 3)), (gradient * standard).sum((0, 2, 3))
    share = x.shape[1] / x.numel()
    dx = (gradient - (_wide(d_bias) + standard * _wide(d_weight)) * share) * (_wide(inverse) * _wide(weight))
    found = dx.to(x.dtype), d_weight.to(weight.dtype), d_bias.to(bias.dtype)
    return found if y is None else (*found, gradient.to(dy.dtype))


def _wide(per_channel: Tensor) -> Tensor:
    return per_channel.float()[:, None, None]


def _normed(wide: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
    return (wide - _wide(mean)) * (_wide(inverse) * _wide(weight)) + _wide(bias)


def _result(wide: Tensor, residual: Tensor | None, normed: Tensor, dtype: torch.dtype) -> Tensor:
    return F.relu(normed if residual is None else normed + residual.float()).to(dtype)


_ARGUMENTS = "Tensor x, Tensor? residual, Tensor weight, Tensor bias"


def _fake_training(x: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.new_empty(x.shape[1], dtype=torch.float32)
    return torch.empty_like(x), mean, torch.empty_like(mean)


def _fake_backward(
    dy: Tensor, x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, *others: Any
) -> list[Tensor]:
    return [torch.empty_like(t) for t in (x, weight, bias, *([] if y is None else [dy]))]


define(
    "norm_relu",
    f"({_ARGUMENTS}, Tensor(a!) running_mean, Tensor(b!) running_var, float momentum, float eps)"
    " -> (Tensor, Tensor, Tensor)",
    _training,
    _fake_training,
)
define(
    "norm_relu_eval",
    f"({_ARGUMENTS}, Tensor running_mean, Tensor running_var, float eps) -> Tensor",
    _evaluation,
    lambda x, *others: torch.empty_like(x),
)
define(
    "norm_relu_backward",
    "(Tensor dy, Tensor x, Tensor? y, Tensor weight, Tensor bias, Tensor mean, Tensor inverse) -> Tensor[]",
    _backward,
    _fake_backward,
)
