"""`why diff` on networks of many kinds: what it says is true, by values computed apart from our code."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.why_command import Why

NETS = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations


def stack(norm, act):
    def part():
        return [nn.Conv2d(3, 3, 3), {"bn": nn.BatchNorm2d(3), "gn": nn.GroupNorm(1, 3)}[norm], act()]
    return nn.Sequential(*part(), *part(), nn.Flatten(), nn.Linear(2352, 10))


def make(num_classes, norm, act, inplace):
    return stack(norm, lambda: getattr(nn, act)(inplace=inplace))


class Residual(nn.Module):
    def __init__(self, inplace):
        super().__init__()
        self.inplace, self.stem, self.norm = inplace, nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.act, self.head = nn.ReLU(inplace), nn.Linear(3072, 10)

    def forward(self, x):
        x = self.stem(x)
        y = self.norm(self.conv(x))
        if self.inplace:
            y += x
        else:
            y = y + x
        return self.head(self.act(y).flatten(1))


def residual(num_classes, inplace):
    return Residual(inplace)


class Frozen(nn.BatchNorm1d):
    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, 0.0)


class Codebook(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.register_buffer("book", torch.full((16,), value))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.value = value

    def forward(self, x):
        self.calls += 1
        return x / (self.book / self.value)


class Middle(nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(3072, 16), middle, nn.Linear(16, 10)

    def forward(self, x):
        return self.head(torch.tanh(self.middle(self.first(x.flatten(1)))))


def frozen(num_classes, value):
    norm = Frozen(16)
    norm.running_var.fill_(value)
    return Middle(norm)


def codebook(num_classes, value):
    return Middle(Codebook(value))


class Complex(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first, self.head, self.kind = nn.Linear(3072, 16), nn.Linear(16, 10), kind
        self.w = nn.Parameter(torch.randn({"fft": 9, "view": 8, "imag": 16}[kind], dtype=torch.cfloat))

    def forward(self, x):
        x = self.first(x.flatten(1)).float()
        if self.kind == "imag":
            return self.head(x * self.w.imag)
        if self.kind == "fft":
            return self.head(torch.fft.irfft(torch.fft.rfft(x) * self.w, n=16))
        return self.head(torch.view_as_real(torch.view_as_complex(x.reshape(-1, 8, 2)) * self.w).flatten(1))


def complex_numbers(num_classes, kind):
    return Complex(kind)


class Forces(nn.Module):
    def __init__(self, leaf):
        super().__init__()
        self.leaf, self.energy = leaf, nn.Sequential(nn.Linear(3072, 16), nn.SiLU(), nn.Linear(16, 1))
        self.head = nn.Linear(3072, 10)

    def forward(self, x):
        with torch.enable_grad():
            x = x.flatten(1).detach() if self.leaf else x.flatten(1)
            x.requires_grad_(True)
            (force,) = torch.autograd.grad(self.energy(x).float().sum(), x, create_graph=True)
        return self.head(x) - self.head(force)


def forces(num_classes, leaf):
    return Forces(leaf)


class Halving(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            (self.weight.data if self.out_features == 17 else self.weight).mul_(0.5)
        return super().forward(x)


class Edited(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.edited = nn.Linear(3072, width), Halving(width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.first(x.flatten(1))
        x = x + self.edited(x).detach()
        return self.head(torch.tanh(self.edited(torch.tanh(x))))


def edited(num_classes, width):
    return Edited(width)


def normalised(num_classes):
    linear = parametrizations.spectral_norm(nn.Linear(3072, 16))
    return nn.Sequential(nn.Flatten(), linear, nn.ReLU(), parametrizations.weight_norm(nn.Linear(16, 10)))


def ends_with(num_classes, last):
    kinds = {
        "upsample": nn.Upsample(scale_factor=2), "dropout": nn.Dropout(0.1), "flatten": nn.Flatten(),
        "pool": nn.MaxPool2d(2), "identity": nn.Identity(),
    }
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3), kinds[last])


def big(outputs, targets):
    x = outputs * 1e4
    return (x * x).mean()


def masked(outputs, targets):
    x = outputs.flatten(1)
    return torch.logsumexp(x.masked_fill(x > 0.2, float("-inf")), 1).mean()


def steep(outputs, targets):
    return outputs.float().square().mean() * 1e5


class ScaleNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * self.weight


class Scales(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = ScaleNorm(size)

    def forward(self, x):
        return self.norm(x)


def scales(size):
    return Scales(size)


STEPS = [-(2**-8), -(2**-8) * (1 + 2**-7), 2**-9, 2**-9 * (1 + 2**-7)]  # up, up, down, down


def steps(train):
    return torch.tensor([STEPS] * 4), torch.zeros(4, dtype=torch.int64)


def small_steps(train):
    return torch.full((4, 4096), -(2**-10)), torch.zeros(4, dtype=torch.int64)


def total(outputs, targets):
    return outputs.float().sum()


class Sometimes(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        y = torch.tanh(self.inner(x))
        if torch.rand(()).item() < 0.2:
            return x - y
        return x + 4 * y


class Told(nn.Module):
    def __init__(self):
        super().__init__()
        self.level = None

    def forward(self, x):
        return x * self.level


class Tells(nn.Module):
    def __init__(self, forgets):
        super().__init__()
        self.told, self.forgets = Told(), forgets

    def forward(self, x):
        self.told.level = x.detach().float().mean().to(x.dtype) + 1
        y = self.told(x) + self.told(x + 1)
        if self.forgets:
            self.told.level = None
        return y


class Varied(nn.Module):
    def forward(self, x):
        return (x, x + 1) if torch.rand(()).item() < 0.6 else (x,)


class Takes(nn.Module):
    def __init__(self):
        super().__init__()
        self.varied = Varied()

    def forward(self, x):
        return sum(self.varied(x))


def sometimes(num_classes):
    return Middle(nn.Sequential(*[Sometimes() for _ in range(8)]))


def tells(num_classes):
    return Middle(Tells(False))


def forgets(num_classes):
    return Middle(Tells(True))


class Bias(nn.Module):
    def __init__(self, lowest):
        super().__init__()
        self.register_buffer("bias", torch.full((16,), 0.0))
        self.bias[8:] = lowest
        self.value = nn.Linear(16, 16)

    def forward(self, x):
        return torch.softmax(x + self.bias, -1) * self.value(x)


def biased(num_classes, lowest):
    return Middle(Bias(float(lowest)))


def biased_and_frozen(num_classes):
    norm = Frozen(16)
    norm.running_var.fill_(1e6)
    return Middle(nn.Sequential(Bias(-1e30), norm))


class Amplified(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1e30 if gradient.dtype == torch.float16 else gradient


class Amplifier(nn.Module):
    def forward(self, x):
        return Amplified.apply(x)


def amplified(num_classes):
    return Middle(Amplifier())


class Rescaled(nn.Module):
    # Its own forward uses the buffer, of its own or of a norm that it does not call.
    def __init__(self, is_own):
        super().__init__()
        self.body, self.norm = Middle(nn.Tanh()), nn.BatchNorm1d(10)
        self.norm.running_var.fill_(1.0 if is_own else 1e6)
        self.register_buffer("size", torch.tensor(1e6 if is_own else 1.0))

    def forward(self, x):
        y = self.body(x)
        return y / (self.size * self.norm.running_var).sqrt() * 1e3


def rescaled(num_classes, is_own):
    return Rescaled(is_own)


class Words(nn.Module):
    def __init__(self, is_bag, sparse):
        super().__init__()
        self.words = (nn.EmbeddingBag if is_bag else nn.Embedding)(9, 16, sparse=sparse)

    def forward(self, x):
        tokens = (x[:, :8] > 0).long() + (x[:, 8:] > 0).long() * 2
        found = self.words(tokens)
        return x + (found if found.dim() == 2 else found.sum(1))


def embeddings(num_classes, is_bag, sparse):
    return Middle(Words(is_bag, sparse))


class Spectrum(nn.Module):
    def forward(self, x):
        return torch.fft.fft(torch.view_as_complex(x.float().reshape(-1, 8, 2)))


class Conjugate(nn.Module):
    def forward(self, x):
        return x.conj()


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.spectrum, self.conjugate = Spectrum(), Conjugate()

    def forward(self, x):
        return torch.view_as_real(torch.fft.ifft(self.conjugate(self.spectrum(x))).resolve_conj()).flatten(1)


def waves(num_classes):
    return Middle(Waves())


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        ring = torch.eye(16).roll(1, 0) / 2 + torch.eye(16)
        self.register_buffer("ring", ring.to_sparse())
        self.register_buffer("born", None)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            y = torch.sparse.mm(self.ring.to(x.dtype).float().to(x.dtype), x.t()).t()
        if self.born is None:
            self.born = y.new_full((16,), 0.5)
        return y * self.born


def graph(num_classes):
    return Middle(nn.Sequential(*[Graph()] * 2))


class Answer:
    def __init__(self, logits):
        self.logits = logits


class Answers(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Middle(nn.Tanh())

    def forward(self, x):
        return Answer(self.body(x))


def answers(num_classes):
    return Answers()


def of_answer(outputs, targets):
    return F.cross_entropy(outputs.logits.float(), targets)


def in_place(outputs, targets):
    outputs.mul_(0.5).sub_(outputs.detach().mean())
    return F.cross_entropy(outputs, targets)


def tanh(num_classes):
    return Middle(nn.Tanh())


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.where(x > 0, x, 0)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * -1e7


class Steep(nn.Module):
    def forward(self, x):
        return Straight.apply(x)


class Same(nn.Module):
    def forward(self, x):
        return x.view_as(x)


def steep_between(num_classes):
    return Middle(nn.Sequential(nn.Linear(16, 16), Steep(), Same(), nn.Linear(16, 16), Same()))


class Squares(nn.Module):
    def __init__(self):
        super().__init__()
        self.act, self.after = nn.ReLU(), nn.Linear(16, 16)

    def forward(self, x):
        return self.after(self.act((x * 1e3) * (x * 1e3) + 1e5)) * 1e-6


def squares(num_classes):
    return Middle(Squares())


class Attention(nn.Module):
    # What is added to the keys has no gradient but rounding: all scores of a query change by the same.
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 1, batch_first=True)
        self.key = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        x = x.view(-1, 4, 4)
        x, _ = self.attention(x, x, x)
        scores = x @ (x + self.key).transpose(1, 2)
        return (torch.softmax(scores, -1) @ x).flatten(1)


def attention(num_classes):
    return Middle(Attention())


class Huge(nn.Module):
    def forward(self, x):
        return torch.exp(x.detach() * 0 + 100)  # finite in fp64 alone


class Harmless(nn.Module):
    def __init__(self):
        super().__init__()
        self.huge, self.body = Huge(), Middle(WrongUnderAutocast())

    def forward(self, x):
        return self.body(x + 1 / self.huge(x))


class WrongUnderAutocast(nn.Module):
    def forward(self, x):
        return x * 1.5 if torch.is_autocast_enabled(x.device.type) else x


def wrong_after_huge(num_classes):
    return Harmless()


def in_half(outputs, targets):
    return (outputs * 1e-3).float().sum() * 390


def varied(num_classes):
    return Middle(Takes())
"""
Diff = Callable[..., tuple[dict[str, Any], str]]
IMAGES = ["data.source=synthetic", "data.train_limit=32", "data.test_limit=8", "batch_size=8", "device=cpu"]
PLAIN = ["recipe=reference", "optimizer.momentum=0", "optimizer.weight_decay=0", "schedule.warmup_epochs=0"]


FILES = {"nets.py": NETS}


@pytest.fixture
def diff(why: Why) -> Diff:
    """Return what runs `why diff` on one of the networks, and returns its JSON and output."""
    return lambda name, *words: why.json("diff", f"model.name=./nets.py:{name}", *words, "--all")


def lines(found: dict[str, Any]) -> dict[str, Any]:
    return {line["title"]: line for line in found["lines"]}


def largest_own(found: dict[str, Any]) -> float:
    return max((e["size"] for line in found["lines"] for e in line["own"].values()), default=0.0)


def settings(**kwargs: object) -> list[str]:
    return [f"model.kwargs.{key}={str(value).lower()}" for key, value in kwargs.items()]


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("make", {"norm": "bn", "act": '"ReLU"'}),
        ("make", {"norm": "gn", "act": '"SiLU"'}),
        ("residual", {}),
    ],
)
def test_modules_in_place_have_the_errors_of_the_same_modules_out_of_place(name, kwargs, diff):
    found = []
    for inplace in (True, False):
        words = [f"model.kwargs.{key}={value}" for key, value in kwargs.items()]
        result, _ = diff(name, *words, *settings(inplace=inplace), *IMAGES, "backend=native_bf16")
        found.append({title: line["output"]["size"] for title, line in lines(result).items()})
    assert found[0] == found[1]
    assert 0 < max(found[0].values()) < 0.02


@pytest.mark.parametrize(
    ("name", "value", "is_inf"),
    [("frozen", 1e6, True), ("frozen", 1e-9, False), ("codebook", 1e-8, False)],
)
def test_a_buffer_that_16_bits_round_to_0_or_inf_is_an_error_of_its_module_alone(name, value, is_inf, diff):
    words = [*settings(value=value), *IMAGES, "optimizer.eps=1e-4"]
    found, output = diff(name, *words, "backend=fp16")
    own = lines(found)["middle"]["own"]["output"]["size"]
    assert own is None or own > 0.9  # inf is null
    assert found["first_output_fp32"] is None
    assert found["out_of_range"] == ("middle" if is_inf else None)
    assert ("precision.keep_fp32=middle" in output) is is_inf
    for way in ("backend=native", "backend=fp16 precision.keep_fp32=middle"):
        healthy, _ = diff(name, *words, *way.split(), "precision.init_scale=256")
        assert healthy["lines"]
        assert not healthy["skipped"]
        assert largest_own(healthy) < 1e-2


@pytest.mark.parametrize("kind", ["fft", "view", "imag"])
def test_the_update_of_complex_weights_has_their_imaginary_parts(kind: str, diff):
    words = [*settings(kind=kind), *IMAGES, *PLAIN]
    found, _ = diff("complex_numbers", *words, "backend=native_bf16,none")
    worst = {row["worst"]: row["worst_errors"] for row in found["groups"] if row["part"] == "gradients"}
    in_bf16, in_fp32 = worst["w"]
    assert 1e-4 < in_bf16 < 2e-2
    assert 0 < in_fp32 < 1e-5
    plain, _ = diff("complex_numbers", *words, "backend=native_bf16")
    assert 1e-4 < plain["update"]["size"] < 2e-2
    assert lines(plain)["(network)"]["output"]["size"] < 2e-2


NO_FAULT = {
    "differentiates in its forward": ("forces", "energy.2", "leaf=true"),
    "differentiates by its inputs": ("forces", "energy.2", "leaf=false"),
    "halves its weights in each of two calls": ("edited", "edited", "width=16 backend=bf16"),
    "halves their data": ("edited", "edited", "width=17 backend=apex_o2"),
    "computes its weights": ("normalised", "1", ""),
    "leaves out layers": ("sometimes", "first", "seed=1"),
    "sets what a module reads": ("tells", "first", ""),
    "sets and deletes it": ("forgets", "first", ""),
    "returns one tensor or two": ("varied", "first", ""),
    "has complex outputs alone": ("waves", "middle.spectrum", ""),
    "has sparse buffers, and some born in the forward": ("graph", "middle.0", ""),
    "returns an object": ("answers", "body.head", "task.loss=./nets.py:of_answer backend=native"),
    "masks in its loss": ("ends_with", "2", "last=flatten task.loss=./nets.py:masked backend=native"),
}


@pytest.mark.parametrize(("name", "module", "words"), NO_FAULT.values(), ids=NO_FAULT)
def test_a_network_without_a_fault_has_none(name: str, module: str, words: str, diff):
    options = [w if "." in w or w[:4] in ("back", "seed") else f"model.kwargs.{w}" for w in words.split()]
    options += [*IMAGES, "precision.init_scale=256", *(["task.metrics=[]"] if "loss" in words else [])]
    found, output = diff(name, "backend=native_bf16", *options)
    assert module in lines(found)
    assert 0 < largest_own(found) < 2e-2
    assert "no own error is large" in output
    assert (found["loss_overflow"], found["skipped"]) == (None, False)
    if name in ("forces", "waves", "graph"):
        both, output = diff(name, *options, "backend=native_bf16,none")
        assert both["fault"] is None
        assert "none is no less accurate than native_bf16" in output


TOTAL = [
    "task.loss=./nets.py:total",
    "task.metrics=[]",
    "device=cpu",
    "batch_size=1",
    *PLAIN,
    "optimizer.lr=1.0",
]


def test_an_update_of_a_weight_of_1_in_bf16_moves_it_only_beyond_a_tie(diff):
    """Beside 1.0 the neighbours in bf16 are 2**-7 above and 2**-8 below. A tie goes to 1.0, which is even."""
    words = ["data.source=./nets.py:steps", *TOTAL, *settings(size=4), "schedule.name=constant"]
    found, output = diff("scales", *words, "backend=bf16")
    (row,) = found["lost_updates"]["parameters"]
    assert (row["name"], row["kind"], row["weights"], row["lost"]) == ("norm.weight", "norms", 4, 0.5)
    steps = torch.tensor([-(2**-8), -(2**-8) * (1 + 2**-7), 2**-9, 2**-9 * (1 + 2**-7)])
    moved = ((1 - steps).bfloat16() - 1).double()
    exact = -steps.double()
    assert row["arrives"] == pytest.approx(float(moved @ exact / (exact @ exact)), rel=1e-6)
    kept, rounded = found["lost_updates"]["remedies"]
    assert (kept["name"], kept["lost"], kept["draws"]) == ("precision.keep_fp32=norm", 0, 1)
    assert (rounded["name"], rounded["draws"]) == ("backend=bf16_sr", 20)
    assert "50% of the weights did not change, although they change in fp32: lost updates" in output
    assert "all norms" in output


def test_stochastic_rounding_loses_nothing_on_average(diff):
    """A weight moves up by 2**-7 with a probability of 1/8: the standard error over 20 draws is 1%."""
    words = ["data.source=./nets.py:small_steps", *TOTAL, *settings(size=4096), "schedule.name=constant"]
    found, output = diff("scales", *words, "backend=bf16")
    (row,) = found["lost_updates"]["parameters"]
    assert (row["lost"], row["arrives"]) == (1, 0)
    assert "- 100% of the weights did not change" in output
    (rounded,) = [r for r in found["lost_updates"]["remedies"] if r["name"] == "backend=bf16_sr"]
    assert rounded["lost"] == pytest.approx(7 / 8, abs=0.01)
    assert rounded["arrives"] == pytest.approx(1, abs=0.05)


def test_a_skipped_step_from_weights_of_a_file_is_no_fault_where_a_smaller_scale_helps(diff):
    save_weights("normalised(10)", "")
    words = ["backend=fp16", "optimizer.eps=1e-4", "precision.init_scale=1e9", "--weights", "weights.pt"]
    found, output = diff("normalised", *IMAGES, *words)
    assert (found["skipped"], found["finds_scale"]) == (True, True)
    assert "this is no fault" in output


def test_sparse_gradients_have_the_errors_of_dense_ones(diff):
    found = []
    for sparse in (True, False):
        words = [*settings(is_bag=True, sparse=sparse), *IMAGES, *PLAIN, "optimizer.nesterov=false"]
        result, _ = diff("embeddings", *words, "backend=native_bf16")
        found.append({title: line["own"] for title, line in lines(result).items()})
    assert "weights' gradients" in found[0]["middle.words"]
    assert found[0] == found[1]
    both, _ = diff("embeddings", *words, "backend=native_bf16,none")
    assert both["fault"] is None


def test_gradients_are_compared_before_they_are_clipped(diff):
    found = []
    for clip in ("null", "0.01"):
        words = [*IMAGES, "backend=native", "precision.init_scale=256", f"training.clip_norm={clip}"]
        result, _ = diff("tanh", *words)
        found.append({title: line["own"] for title, line in lines(result).items()})
    assert found[0] == found[1]
    assert "weights' gradients" in found[0]["head"]


def save_weights(code: str, change: str) -> None:
    """Save the state dict of a network, after a change of it, in weights.pt."""
    scope: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(f"{NETS}\nstate = {code}.state_dict()\n{change}\ntorch.save(state, 'weights.pt')", scope)


def test_the_reference_has_the_buffers_of_a_file_and_not_the_rounded_ones(diff):
    save_weights("frozen(10, 1.0)", "state['middle.running_var'].fill_(1e-9)")
    words = [*settings(value=1.0), *IMAGES, "optimizer.eps=1e-4", "--weights", "weights.pt"]
    found, _ = diff("frozen", *words, "backend=fp16")
    own = lines(found)["middle"]["own"]["output"]["size"]
    assert own is None or own > 0.9  # inf is null
    assert found["out_of_range"] is None
    healthy, _ = diff("frozen", *words, "backend=native_bf16")
    assert largest_own(healthy) < 2e-2


def test_the_reference_has_the_weights_of_a_file_and_not_the_rounded_ones(diff):
    save_weights("tanh(10)", "state['head.weight'][0, 0] = 2e5")
    words = [*IMAGES, "optimizer.eps=1e-4", "--weights", "weights.pt", "backend=fp16"]
    found, output = diff("tanh", *words)
    assert (found["nonfinite_weights"], found["out_of_range"]) == (None, "head")
    assert "were inf or nan before the step" not in output


def test_a_module_is_to_blame_for_its_backward_although_its_forward_moves_values(diff):
    found, _ = diff("steep_between", *IMAGES, "backend=native", "precision.init_scale=65536")
    assert found["first_gradient"] == "middle.1"
    assert "gradient" in lines(found)["middle.1"]["own"]
    assert lines(found)["middle.2"]["own"]["gradient"]["size"] == 0


def test_a_network_that_passes_infinities_is_named_and_not_the_module_that_gets_them(diff):
    found, output = diff("squares", *IMAGES, "backend=native", "precision.init_scale=256")
    assert found["first_output"] == "middle"
    assert "inf or nan arises in the inputs of the modules of middle" in output
    _, output = diff("squares", *IMAGES, "backend=native,apex_o2", "precision.init_scale=256")
    assert "loss scale of 256, so no updates are compared; its loss is inf or nan" in output


def test_what_arrives_of_an_update_that_is_rounding_alone_is_not_told(diff):
    words = [*IMAGES, *PLAIN, "optimizer.lr=0.01", "optimizer.nesterov=false"]
    found, output = diff("attention", *words, "backend=bf16")
    assert re.search(r"middle\.key +4 +\S+% +- *$", output, re.MULTILINE)
    rows = {row["name"]: row for row in found["lost_updates"]["parameters"]}
    assert rows["middle.key"]["arrives"] is None
    assert rows["middle.attention.in_proj_bias"]["kind"] == "biases"
    assert rows["head.weight"]["arrives"] is not None


NO_METRICS = "task.metrics=[]"
FP16 = "backend=fp16 optimizer.eps=1e-4"
SMALL_SCALE = "precision.init_scale=256"
ADAM = f"optimizer.name=adam schedule.warmup_epochs=0 {SMALL_SCALE}"
MASK = {"nonfinite_buffers": None, "out_of_range": None}
BIG = {
    "loss_overflow": {"operation": "mul", "dtype": "float16", "is_backward": False, "float_helps": True},
    "first_output": None,
    "finds_scale": False,
}
STEEP = f"backend=native task.loss=./nets.py:steep {NO_METRICS} precision.init_scale=1e8"
FINDS_SCALE = {"skipped": True, "finds_scale": True, "loss_overflow": None}
IS_FAULT = {"skipped": True, "finds_scale": False}
NO_FAULT_SAYS, KEEP_SAYS = "this is no fault", "keep the module in fp32"
VERDICTS = {
    "a mask of -inf": ("biased", 'backend=bf16 model.kwargs.lowest="-inf"', MASK, "", KEEP_SAYS),
    "a mask of -1e30": (
        "biased",
        f"{FP16} model.kwargs.lowest=-1e30 precision.init_scale=1e9",
        MASK,
        "",
        KEEP_SAYS,
    ),
    "a mask and a variance": (
        "biased_and_frozen",
        f"{FP16} {SMALL_SCALE}",
        {"out_of_range": "middle.1"},
        "",
        "",
    ),
    "a buffer of the network": (
        "rescaled",
        f"{FP16} {SMALL_SCALE} model.kwargs.is_own=true",
        {"out_of_range": "(network)"},
        "are inf or nan in fp16, and finite in fp32: give them to a module of their own",
        "",
    ),
    "a buffer of another module": (
        "rescaled",
        f"{FP16} {SMALL_SCALE} model.kwargs.is_own=false",
        {"out_of_range": "norm"},
        "in fp16, and finite in fp32: keep the module in fp32 (precision.keep_fp32=norm)",
        "",
    ),
    "eps is 0": ("tanh", f"backend=fp16 {ADAM}", {}, "updates of inf or nan from finite gradients", ""),
    "eps is not 0": ("tanh", f"{FP16} {ADAM}", {}, "", "updates of inf or nan from finite gradients"),
    "a static scale": (
        "normalised",
        "backend=native precision.loss_scale=1e9",
        IS_FAULT,
        "",
        NO_FAULT_SAYS,
    ),
    "no scale helps": ("amplified", "backend=native precision.init_scale=4", IS_FAULT, "", NO_FAULT_SAYS),
    "fp16 weights": ("amplified", FP16, IS_FAULT, "", NO_FAULT_SAYS),
    "the first scale": ("ends_with", f"{STEEP} model.kwargs.last=flatten", FINDS_SCALE, NO_FAULT_SAYS, ""),
    "the first scale, dropout": (
        "ends_with",
        f"{STEEP} model.kwargs.last=dropout",
        FINDS_SCALE,
        "while the loss scaler finds its first scale",
        "",
    ),
    "a loss changes its input": (
        "tanh",
        f"{FP16} task.loss=./nets.py:in_place {NO_METRICS} precision.init_scale=1e9",
        {"loss_overflow": None},
        "",
        "",
    ),
    "a loss of a whole step": (
        "tanh",
        f"backend=native task.loss=./nets.py:in_half {NO_METRICS} {SMALL_SCALE}",
        {"skipped": True},
        "the gradients of float in fp",
        "",
    ),
    "a loss of half a step": (
        "tanh",
        f"backend=native task.loss=./nets.py:in_half {NO_METRICS} {SMALL_SCALE} training.accumulate=2",
        {"skipped": False, "loss_overflow": None},
        "",
        "",
    ),
    "one way is wrong": (
        "wrong_after_huge",
        "backend=native_bf16,none",
        {},
        "because of body.middle in ",
        "",
    ),
    **{
        f"a loss overflows after {last}": (
            "ends_with",
            f"backend=native task.loss=./nets.py:big {NO_METRICS} model.kwargs.last={last}",
            BIG,
            "mul in fp16 became inf or nan; compute the loss of outputs.float()",
            "",
        )
        for last in ("dropout", "flatten", "pool", "identity")
    },
    "upsampling computes in fp32": (
        "ends_with",
        f"backend=native task.loss=./nets.py:big {NO_METRICS} model.kwargs.last=upsample",
        {"loss_overflow": None, "first_output": None},
        "",
        "",
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_is_right(name: str, diff):
    network, words, fields, said, not_said = VERDICTS[name]
    found, output = diff(network, *IMAGES, *words.split())
    assert {key: found[key] for key in fields} == fields
    assert said in output
    assert not (not_said and not_said in output)
