"""What `data.source=./data.py:build` may return, and one line for what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.own_data import OWN

from ampcompare.data.dataset import Dataset, build_dataset
from ampcompare.data.splits import BatchSet, ImageSet, Places, SampleSet, TensorSet
from ampcompare.errors import UserError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def given(code: str, here: Path, **more: Any) -> Dataset:
    """The data of a `build` with this body."""
    body = "\n".join(f"    {line}" for line in code.splitlines())
    (here / "mine.py").write_text(f"{OWN}\n\ndef build(train):\n{body}\n")
    return build_dataset("./mine.py:build", **more)


def refusal(code: str, here: Path, **more: Any) -> str:
    with pytest.raises(UserError) as caught:
        given(code, here, **more)
    (line,) = caught.value.lines
    return line


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tensors", TensorSet),
        ("named", TensorSet),
        ("samples", SampleSet),
        ("named_samples", SampleSet),
        ("loader", BatchSet),
        ("stream", BatchSet),
        ("sequences", BatchSet),
    ],
)
def test_every_form_is_taken_as_what_it_is(name: str, kind: type):
    data = build_dataset(f"./data.py:{name}", batch_sizes=(32, 8))
    assert isinstance(data.train, kind)
    assert isinstance(data.test, kind)
    assert (len(data.train), len(data.test)) == ((3, 5) if kind is BatchSet else (90, 33))


@pytest.mark.parametrize("kind", ["int32", "int16", "uint8", "uint16"])
def test_classes_are_known_of_numpy_labels_of_any_whole_type(here: Path, kind: str):
    code = f"x, y = table(train)\nreturn x.numpy(), y.numpy().astype(np.{kind})"
    assert given(code, here, train_limit=20).classes == ("0", "1")


def test_a_subset_draws_for_each_sample_as_the_whole_does(here: Path):
    """The same whatever process makes it: by its place in the epoch, not by the batch it is in."""
    code = "from torch.utils.data import Subset\nd = Subset(Noisy(train), range(5, 31))\n"
    data = given(code + "return Subset(d, torch.arange(1, 25))", here, train_limit=20)
    assert len(data.train) == 20
    assert data.classes == ("below", "above")
    whole = data.train.batch(Places(3, 0, 0, 1, list(range(8))))[0]
    share = data.train.batch(Places(3, 0, 1, 2, [1, 3, 5, 7]))[0]
    assert share.equal(whole[1::2])
    x = given("return Noisy(train)", here).train.data.x
    near = {int((x - row).abs().sum(1).argmin()) for row in whole - 0.015}
    assert near <= set(range(6, 30))


def test_a_tensor_data_set_is_its_tensors(here: Path):
    assert isinstance(given("return TensorDataset(*table(train))", here).train, TensorSet)
    part = given("return torch.utils.data.Subset(TensorDataset(*table(train)), [3, 1])", here).train
    assert part.inputs.equal(build_dataset("./data.py:tensors").train.inputs[[3, 1]])


def test_images_as_bytes_with_labels_are_ours_to_augment_whatever_holds_them(here: Path):
    code = "x = torch.zeros(8, 3, 4, 4, dtype=torch.uint8), torch.arange(8) % 2\nreturn {}"
    for form in ("x", "TensorDataset(*x)", "list(x)", "[x[0].numpy(), x[1].tolist()]"):
        assert isinstance(given(code.format(form), here).train, ImageSet)


def test_a_function_gets_its_arguments_and_those_of_ours_that_it_names(here: Path):
    code = """
def build(is_train, seed, batch_size, size=1, *, deep=None):
    import torch
    assert deep == {"a": 2}
    return torch.full((size, 3), float(seed)), torch.full((size,), float(batch_size))
"""
    (here / "mine.py").write_text(code)
    how = {"kwargs": {"size": 5, "deep": {"a": 2}}, "batch_sizes": (32, 8), "seed": 7}
    data = build_dataset("./mine.py:build", **how)
    assert data.train.inputs.tolist() == [[7.0] * 3] * 5
    assert (data.train.targets[0], data.test.targets[0]) == (32, 8)


def test_classes_are_those_of_whole_numbers_one_a_sample_where_they_are_known(
    here: Path, subtests: pytest.Subtests
):
    for code, count in [
        ("return table(train)", 2),
        ("x, y = table(train)\nreturn x, y.float()", 0),
        ("x, y = table(train)\nreturn x, y[:, None]", 0),
        ("x, y = table(train)\nreturn x, {'label': y}", 0),
        ("x, y = table(train)\nreturn x, torch.where(y > 0, 4, -100)", 5),
        ("x, y = table(train)\nreturn x, y - 3", 0),
        ("x, y = table(train)\nreturn x, y + 10**12", 0),
        ("return Noisy(train)", 2),
        ("d = Noisy(train)\nd.classes = None\nd.targets = [0, 2, 1]\nreturn d", 3),
        ("d = Noisy(train)\nd.classes = None\nd.num_classes = 7\nreturn d", 7),
        ("d = Noisy(train)\nd.classes = None\nreturn d", 0),
        ("return torch.utils.data.Subset(Noisy(train), range(20))", 2),
        ("return DataLoader(Noisy(train), batch_size=4)", 2),
        ("return NoisyInNames(train)", 0),
    ]:
        with subtests.test(code=code, count=count):
            assert len(given(code, here).classes) == count


def test_what_is_no_data_is_one_line_that_says_so(here: Path, subtests: pytest.Subtests):
    for code, said in [
        ("return None", "train=True: returned None; expected tensors, a map-style Dataset or a DataLoader"),
        ("return 5", "train=True: returned an int; expected tensors"),
        ("return 'abc'", "train=True: returned a str; expected tensors"),
        ("return {'x': torch.ones(3)}", "train=True: returned a dict; expected tensors"),
        ("return torch.ones(3)", "train=True: a sample is a Tensor; expected (inputs, targets), each a"),
        ("return ()", "train=True: the data: a tuple of 0; expected (inputs, targets), each a"),
        ("return table(train) * 2", "train=True: the data: a tuple of 4; expected (inputs, targets)"),
        ("return table(train)[0], None", "train=True: the data: targets are a NoneType; expected"),
        (
            "x, y = table(train)\nreturn x, y[1:]",
            "train=True: the data: inputs with 90 and targets with 89 samples; expected as many everywhere",
        ),
        (
            "x, y = table(train)\nreturn {'a': x, 'b': x[2:]}, y",
            "train=True: the data: inputs with 90 and 88 and targets with 90 samples",
        ),
        ("return {}, torch.ones(3)", "train=True: the data: inputs are an empty dict"),
        (
            "return {3: torch.ones(3)}, torch.ones(3)",
            "train=True: the data: inputs have the key 3; expected names",
        ),
        ("return torch.ones(()), torch.ones(3)", "train=True: the data: inputs have no dimension"),
        ("return torch.ones(0, 3), torch.ones(0)", "train=True: the data: empty; expected at least one"),
        (
            "return torch.eye(3).to_sparse(), torch.ones(3)",
            "train=True: the data: inputs are no dense tensor",
        ),
        (
            "return np.array(['a', 'b']), np.ones(2)",
            "train=True: the data: inputs are an array of <U1; expected numbers",
        ),
        (
            "return [[1.0], [1.0, 2.0]], [1, 2]",
            "train=True: a list that is no array (setting an array element with a sequence",
        ),
        ("return []", "train=True: a list of 0; expected at least one sample"),
        ("return [1, 2, 3]", "train=True: a sample is an int; expected (inputs, targets)"),
        ("return [(1.0, 2, 3)] * 4", "train=True: a sample is a tuple of 3; expected (inputs, targets)"),
        ("return [('a', 1)] * 4", "train=True: a batch of its samples: inputs are a tuple; expected"),
        (
            "return [(torch.ones(n), n) for n in (1, 2, 3)]",
            "train=True: its samples do not make one tensor (stack expects each tensor to be equal size",
        ),
        (
            "return [(torch.ones(n), n) for n in (1, 2, 3)]",
            "have the function return a DataLoader with a collate_fn for them",
        ),
        ("return (i for i in range(3))", "train=True: a generator without a length ("),
        ("return DataLoader([(1.0, 2)][:0], batch_size=2)", "train=True: a DataLoader of 0 batches"),
        ("return DataLoader([1.0] * 4, batch_size=2)", "batch 0 of epoch 0: a Tensor; expected (inputs,"),
        ("return DataLoader([{'x': 1}] * 4)", "batch 0 of epoch 0: a dict; expected (inputs, targets)"),
        (
            "x, y = table(train)\nreturn (x, y) if train else ({'a': x}, y)",
            "train=True and train=False differ in their names: ((), ()) and (('a',), ())",
        ),
    ]:
        with subtests.test(code=code, said=said):
            line = refusal(code, here)
            assert line.startswith("data.source='./mine.py:build': ")
            assert said in line
            assert len(line) < 400


@pytest.mark.parametrize("form", ["d", "DataLoader(d, batch_size=4)", "DataLoader(d, 4, num_workers=1)"])
def test_what_fails_in_the_data_is_one_line_with_its_place(here: Path, form: str):
    code = "d = Noisy(train)\ndef fail(i):\n    raise OSError('no disk\\nat all')\n"
    code += f"Noisy.__getitem__ = lambda self, i: fail(i)\nreturn {form}"
    line = refusal(code, here)
    lines = (here / "mine.py").read_text().splitlines()
    (number,) = (number for number, text in enumerate(lines, 1) if "raise OSError" in text)
    assert f"(line {number}: OSError: no disk)" in line


def test_an_iterable_that_cannot_begin_anew_is_one_line(here: Path):
    code = "class Once(Stream):\n    def __init__(self, train):\n        super().__init__(train, 9)\n"
    code += "        self.rest = super().__iter__()\n        list(self.rest)\n"
    code += "    def __iter__(self):\n        return self.rest\nreturn Once(train)"
    assert "a Once of 10 batches that gave none; it has to begin anew each time" in refusal(code, here)


LIMIT = {"train_limit": 20, "test_limit": 10}


@pytest.mark.parametrize("name", ["tensors", "samples", "named"])
def test_limits_take_the_same_part_each_time_and_part_of_the_larger(name: str):
    small, again, large = (
        build_dataset(f"./data.py:{name}", train_limit=limit, test_limit=10) for limit in (20, 20, 30)
    )
    assert (len(small.train), len(small.test)) == (20, 10)
    assert small.fingerprint == again.fingerprint != large.fingerprint
    if name == "samples":
        assert [*small.train.data.indices] == [*large.train.data.indices][:20]


def test_limits_of_tensors_are_balanced_over_their_classes(here: Path):
    data = given("x, y = table(train)\nreturn x, torch.arange(len(x)) % 4 // 3", here, **LIMIT)
    assert torch.bincount(data.train.targets).tolist() == [10, 10]


def test_a_limit_beside_a_loader_is_one_line(here: Path):
    code = "return DataLoader(Noisy(train), batch_size=4)"
    assert refusal(code, here, train_limit=20) == (
        "data.train_limit=20: ./mine.py:build returned a loader of its own; limit it in the function, or "
        "give max_steps"
    )
    assert "data.test_limit=10: " in refusal(code, here, test_limit=10)
    assert "data.train_limit=99: ./mine.py:build has 90 train samples" in refusal(
        "return Noisy(train)", here, train_limit=99
    )


# Fingerprints


@pytest.mark.parametrize(
    "name", ["tensors", "named", "samples", "named_samples", "loader", "stream", "sequences"]
)
def test_the_same_data_have_one_fingerprint_whatever_is_random_in_them(name: str):
    seen = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        data = build_dataset(f"./data.py:{name}", seed=seed)
        seen.add((data.fingerprint, data.test.fingerprint(data.classes)))
    assert len(seen) == 1


@pytest.mark.parametrize("name", ["table(train)", "Noisy(train)", "DataLoader(Noisy(train), batch_size=16)"])
@pytest.mark.parametrize(
    "change", ["TRAIN = 91", "TEST = 34", "rng = np.random.default_rng(0 if train else 5)"]
)
def test_other_data_have_another_fingerprint(here: Path, name: str, change: str):
    before = given(f"return {name}", here)
    text = (here / "mine.py").read_text()
    old = "TRAIN, TEST = 90, 33"
    new = f"{old}\n{change}" if change.startswith("T") else old
    text = text.replace(old, new).replace("rng = np.random.default_rng(0 if train else 1)", change, 1)
    if change.startswith("T"):
        text = (here / "mine.py").read_text().replace(old, new)
    (here / "mine.py").write_text(text)
    assert build_dataset("./mine.py:build").fingerprint != before.fingerprint


def test_the_training_data_may_change_with_a_seed_that_the_function_takes(here: Path):
    code = "import torch\ndef build(train, seed):\n    x = torch.full((9, 2), seed * train * 1.0)\n"
    code += "    return x, x"
    (here / "mine.py").write_text(code)
    names = {build_dataset("./mine.py:build", seed=seed).fingerprint for seed in (1, 2)}
    assert len(names) == 1


@pytest.mark.parametrize("kind", ["int32", "uint8", "int16"])
def test_labels_of_images_as_bytes_may_be_of_any_whole_type(here: Path, kind: str):
    data = given(f"return torch.zeros(4, 3, 2, 2, dtype=torch.uint8), torch.arange(4).to(torch.{kind})", here)
    assert isinstance(data.train, ImageSet)
    assert data.train.labels.dtype is torch.int64
    assert data.train.labels.tolist() == [0, 1, 2, 3]


def test_a_limit_takes_of_each_class_as_many_of_a_data_set_with_targets(here: Path):
    code = (
        "class Own(torch.utils.data.Dataset):\n"
        "    targets = [0] * 96 + [1] * 4\n"
        "    def __len__(self): return 100\n"
        "    def __getitem__(self, i): return torch.zeros(2), self.targets[i]\n"
        "return Own()"
    )
    data = given(code, here, train_limit=8)
    assert sorted(int(y) for _, y in data.train.data) == [0] * 4 + [1] * 4
