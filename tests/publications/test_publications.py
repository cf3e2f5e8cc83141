"""Publications: a file is read, or refused in one line with its key; the shipped ones are complete."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode

from ampcompare.config.publication_config import arm_config
from ampcompare.config.schema import Config
from ampcompare.data.sources import SOURCES
from ampcompare.errors import UserError
from ampcompare.models import build_model
from ampcompare.publications.printed_value import PrintedValue
from ampcompare.publications.publication import list_publications, load_publication

PAPER: dict[str, Any] = {
    "title": "A paper",
    "source": "Somebody",
    "setting": {"model": {"name": "tiny"}, "epochs": 2},
    "baseline": "fp32",
    "arms": {"fp32": {"backend": "none"}, "half": {"backend": "fp16", "precision": {"loss_scale": 1}}},
    "figures": {"time": {"measured": "seconds", "unit": "min", "values": {"fp32": "2.0", "half": "1.5"}}},
    "curves": ["eval/loss"],
}


NONE = ["fast", "", "0,24", "1,23", "24 %", "nan", "1.", ".5", "6h54", "9" * 41, True, None, []]
FIGURE = 'is not a number; expected it as it was printed, such as "0.240"'


def written(folder: Path, content: Any) -> Path:
    """Write the file of a publication."""
    path = folder / "paper.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def changed(key: str, value: Any) -> dict[str, Any]:
    """Return the paper with one value, by its dotted key, set or removed (`...`)."""
    content: Any = yaml.safe_load(yaml.safe_dump(PAPER))
    *path, last = key.split(".")
    place = content
    for part in path:
        place = place[int(part) if isinstance(place, list) else part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return content


def test_a_file_is_read_by_its_path_and_named_after_it(tmp_path):
    publication = load_publication(str(written(tmp_path, PAPER)))
    assert (publication.name, publication.runs, publication.images, publication.gflop) == (
        "paper",
        1,
        None,
        None,
    )
    assert publication.arm_keys == ("backend", "precision.loss_scale")
    assert publication.setting == {"model.name": "tiny", "epochs": 2}
    time = publication.figures[0].values["fp32"]
    assert (time.value, time.low, time.high) == pytest.approx((120, 117, 123))


# Texts, their value, and half of the interval of every number that is printed so.
PRINTED = [("0.240", 0.24, 0.0005), ("-3", -3, 0.5), (7, 7, 0.5), ("1,803", 1803, 0.5), ("6h", 21600, 1800)]
PRINTED += [("1,234,567.8", 1234567.8, 0.05), ("12min29s", 749, 0.5), ("1 h 2 min 3.5s", 3723.5, 0.05)]


def test_a_printed_value_has_the_interval_of_its_digits(subtests):
    for text, value, half in PRINTED:
        with subtests.test(text=text):
            printed = PrintedValue.model_validate(text)
            assert printed.text == str(text)
            assert (printed.value, printed.low, printed.high) == pytest.approx(
                (value, value - half, value + half)
            )


LINES = "expected lines of the form key: value"
TIME, HALF = "figures.time", "figures.time.values.half"
WRONG = [
    ("titel", "x", "titel: no such key; did you mean title?"),
    (f"{TIME}.valeus", {}, f"{TIME}.valeus: no such key; did you mean values?"),
    ("title", ..., "title: missing"),
    ("baseline", "O1", "baseline='O1': expected one of the arms: fp32, half"),
    ("arms", {str(n): {} for n in range(21)}, "arms: expected at most 20 of them"),
    ("arms", {"a\nb": {}}, "arms.a b='a\\nb': expected a name of 1 to 60 characters, in one line"),
    ("arms.half", "fp16", f"arms.half='fp16': {LINES}"),
    ("arms.half", {1: 2}, "arms.half[1]=1: expected a text"),
    ("runs", 0, "runs=0: expected at least 1"),
    ("gflop", float("nan"), "gflop=nan: expected a number"),
    (f"{TIME}.measured", "wall", f"{TIME}.measured='wall': expected 'seconds',"),
    (f"{TIME}.unit", "MiB", f"{TIME}.unit='MiB': expected one of s, min, h, which fit seconds"),
    (f"{TIME}.values", {"O1": "2"}, f"{TIME}.values.O1: no such arm; expected one of fp32, half"),
    *((HALF, text, f"{HALF}={text!r}: {FIGURE}") for text in NONE),
    (HALF, {"value": 1}, f"{HALF}: is a value with an interval of its own, which went in 0.5"),
    ("curves", [1], "curves[0]=1: expected a text"),
]


def test_a_mistake_in_a_file_is_one_line_with_its_key(tmp_path, subtests: pytest.Subtests):
    cases = [(changed(key, value), f"{key} {value}", said) for key, value, said in WRONG]
    cases += [(content, content, "") for content in ("", "[]", "a: [", "title: x\ntitle: y")]
    for content, what, said in cases:
        with subtests.test(what=what, said=said):
            path = written(tmp_path, content)
            with pytest.raises(UserError) as refused:
                load_publication(str(path))
            (line,) = refused.value.lines
            assert line.startswith(f"{path}: {said}" if said else f"{path}")


@pytest.mark.parametrize("name", list_publications())
def test_shipped_publications_are_found_by_name_suffix_and_path(name):
    publication = load_publication(name)
    assert load_publication(f"{name}.yaml") == load_publication(str(publication.path)) == publication


def built(config: Config) -> tuple[torch.nn.Module, torch.Tensor]:
    """Return the arm's network on the meta device, without memory and time, and two samples."""
    source = SOURCES.get(config.data.source)
    size, width = config.data.kwargs.get("size", 32), config.data.kwargs.get("width")
    with torch.device("meta"):
        kwargs = config.model.kwargs
        classes = source.classes if source else None
        model = build_model(config.model.name, config.model.stem, classes, kwargs=kwargs)
        return model, torch.empty(2, 3, size, size) if source else torch.empty(2, width)


@pytest.mark.slow
@pytest.mark.parametrize("name", list_publications())
def test_the_recorded_work_per_sample_equals_the_counted_work(name):
    publication = load_publication(name)
    model, samples = built(arm_config(publication, publication.baseline))
    with FlopCounterMode(display=False) as counted:
        model(samples).sum().backward()
    assert publication.gflop == pytest.approx(counted.get_total_flops() / len(samples) / 1e9, rel=1e-3)


def test_each_publication_has_a_tiny_network(subtests: pytest.Subtests):
    for name in list_publications():
        with subtests.test(name=name):
            config = arm_config(load_publication(name), load_publication(name).baseline, network="tiny")
            model, samples = built(config)
            assert len(model(samples)) == 2
            assert sum(p.numel() for p in model.parameters()) < 20_000
