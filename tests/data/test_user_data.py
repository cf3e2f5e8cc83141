"""What `data.source=./data.py:build` may return, and one line for what it may not."""

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.own_data import OWN
from support.refusals import line_of

from ampcompare.data.dataset import ImageSplit, LoaderSplit, SampleSplit, TensorSplit
from ampcompare.data.factory import Dataset, build_dataset
from ampcompare.errors import UserError

pytestmark = pytest.mark.usefixtures("here")


def build_data(code: str, **more: Any) -> Dataset:
    """Return the data of a `build` function with this body."""
    body = "\n".join(f"    {line}" for line in code.splitlines())
    Path("mine.py").write_text(f"{OWN}\n\ndef build(train):\n{body}\n")
    return build_dataset("./mine.py:build", **more)


def test_every_form_of_data_becomes_its_kind_of_split():
    for name, kind in [
        ("tensors", TensorSplit),
        ("named", TensorSplit),
        ("samples", SampleSplit),
        ("named_samples", SampleSplit),
        ("loader", LoaderSplit),
        ("stream", LoaderSplit),
        ("sequences", LoaderSplit),
    ]:
        data = build_dataset(f"./data.py:{name}", batch_sizes=(32, 8))
        assert isinstance(data.train, kind), name
        assert (len(data.train), len(data.test)) == ((3, 5) if kind is LoaderSplit else (90, 33))
    assert isinstance(build_data("return TensorDataset(*table(train))").train, TensorSplit)
    wide = build_data("x, y = table(train)\nreturn {'x': x.numpy().astype(float)}, y.double()").train
    assert wide.inputs["x"].dtype is wide.targets.dtype is torch.float32
    part = build_data("return torch.utils.data.Subset(TensorDataset(*table(train)), [3, 1])").train
    assert part.inputs.equal(build_dataset("./data.py:tensors").train.inputs[[3, 1]])


@pytest.mark.parametrize("kind", ["int32", "int16", "uint8", "int64"])
def test_images_as_bytes_with_labels_of_any_integer_dtype_are_augmented(kind: str):
    code = f"x = torch.arange(96).byte().view(2, 3, 4, 4), torch.arange(2).to(torch.{kind})\nreturn "
    for form in ("x", "TensorDataset(*x)", "list(x)", "(x[0].numpy()[::-1], x[1].tolist()[::-1])"):
        data = build_data(code + form, train_limit=2).train
        assert isinstance(data, ImageSplit)
        assert data.labels.dtype is torch.int64
        assert data.labels.tolist() == (data.images[:, 0, 0, 0] // 48).tolist()
        assert data.labels[0] == ("::" in form)


def test_a_function_gets_the_users_arguments_and_the_defaults_that_its_signature_names(here: Path):
    code = """
def build(is_train, seed, batch_size, size=1, *, deep=None):
    import torch
    assert deep == {"a": 2}
    return torch.full((size, 3), float(seed * is_train)), torch.full((size,), float(batch_size))
"""
    (here / "mine.py").write_text(code)
    options = {"kwargs": {"size": 5, "deep": {"a": 2}}, "batch_sizes": (32, 8)}
    data, other = (build_dataset("./mine.py:build", **options, seed=seed) for seed in (7, 8))
    assert data.train.inputs.tolist() == [[7.0] * 3] * 5
    assert (data.train.targets[0], data.test.targets[0]) == (32, 8)
    assert data.fingerprint == other.fingerprint  # training data may change with a seed that is taken
    message = line_of(build_dataset, "./mine.py:build", **(options | {"kwargs": {"train": 3}}))
    assert message.startswith("data.kwargs.train: AMP Compare itself calls ./mine.py:build with train=True")


def test_classes_are_known_for_one_integer_target_per_sample(subtests: pytest.Subtests):
    for code, count in [
        ("x, y = table(train)\nreturn x.numpy(), y.numpy().astype(np.uint16)", 2),
        ("x, y = table(train)\nreturn x, y.float()", 0),
        ("x, y = table(train)\nreturn x, y[:, None]", 0),
        ("x, y = table(train)\nreturn x, torch.where(y > 0, 4, -100)", 5),
        ("d = Noisy(train)\nd.classes = None\nd.targets = [0, 2, 1]\nreturn d", 3),
        ("d = Noisy(train)\nd.classes = None\nd.num_classes = 7\nreturn d", 7),
        ("return DataLoader(Noisy(train), batch_size=4)", 2),
        ("return NoisyInNames(train)", 0),
    ]:
        with subtests.test(code=code):
            assert len(build_data(code).classes) == count


def test_an_invalid_result_is_refused_in_one_line(subtests: pytest.Subtests):
    for code, message in [
        ("return None", "data for train=True: the function returned None; expected (inputs, targets), a map"),
        ("return torch.ones(3)", "data for train=True: the function returned a Tensor; expected (inputs,"),
        ("return table(train)[0], None", "data for train=True: targets are None; expected"),
        (
            "x, y = table(train)\nreturn {'a': x, 'b': x[2:]}, y",
            "the tensors of inputs and targets have 90, 88, 90 samples",
        ),
        ("return torch.ones(0, 3), torch.ones(0)", "the tensors of inputs and targets have 0, 0 samples"),
        ("return np.array(['a', 'b']), np.ones(2)", "inputs are a ndarray of <U1; expected"),
        (
            "return [(torch.ones(n), n) for n in (1, 2, 3)]",
            "first samples for train=True: its samples cannot be stacked into one tensor (stack",
        ),
        ("return DataLoader([1.0] * 4, batch_size=2)", "batch 0 of epoch 0: got a Tensor; expected (inputs,"),
        (
            "x, y = table(train)\nreturn (x, y) if train else ({'a': x}, y)",
            "have the names ((), ()) for train=True, but",
        ),
        ("raise SystemExit(0)", "cannot get data for train=True (line "),
        (
            "x = torch.zeros(4, 3, 2, 2).byte()\nreturn x, torch.arange(4) + 10**12",
            "labels from 1000000000000 to 1000000000003: expected 0 to 99999",
        ),
    ]:
        with subtests.test(code=code):
            line = line_of(build_data, code)
            assert line.startswith("data.source='./mine.py:build': ")
            assert message in line
            assert len(line) < 400


@pytest.mark.parametrize("form", ["d", "DataLoader(d, batch_size=4)", "DataLoader(d, 4, num_workers=1)"])
def test_an_exception_in_the_data_is_one_line_below_the_plug_ins_traceback(form: str):
    code = "d = Noisy(train)\ndef fail(i):\n    raise OSError('no disk\\nat all')\n"
    with pytest.raises(UserError) as caught:
        build_data(code + f"Noisy.__getitem__ = lambda self, i: fail(i)\nreturn {form}")
    (line,), shown = caught.value.lines, "".join(traceback.format_exception(caught.value.cause))
    lines = Path("mine.py").read_text().splitlines()
    (number,) = (number for number, text in enumerate(lines, 1) if "raise OSError" in text)
    assert f"(line {number}: OSError: no disk)" in line
    assert f"line {number}, in fail" in shown


@pytest.mark.parametrize("name", ["tensors", "named_samples", "restless", "restless_loader"])
def test_the_same_data_have_one_fingerprint_despite_random_choices(name: str):
    seen = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        data = build_dataset(f"./data.py:{name}", seed=seed)
        seen.add((data.fingerprint, data.test.fingerprint(data.classes)))
    assert len(seen) == 1


@pytest.mark.parametrize("name", ["table(train)", "Noisy(train)", "DataLoader(Noisy(train), batch_size=16)"])
@pytest.mark.parametrize(
    ("old", "new"),
    [("TRAIN, TEST = 90", "TRAIN, TEST = 91"), ("0 if", "5 if"), ("> 0).astype", "> 1).astype")],
)
def test_different_data_have_different_fingerprints(here: Path, name: str, old: str, new: str):
    before = build_data(f"return {name}")
    (here / "mine.py").write_text((here / "mine.py").read_text().replace(old, new))
    assert build_dataset("./mine.py:build").fingerprint != before.fingerprint
