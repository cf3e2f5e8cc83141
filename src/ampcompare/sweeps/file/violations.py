"""What is allowed in a sweep file: W&B's schema, as sentences about what breaks it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ampcompare.errors import did_you_mean
from ampcompare.sweeps.file.command import DEFAULT_COMMAND, macro_problem
from ampcompare.sweeps.file.parameters import (
    DISTRIBUTIONS,
    POSITIVE_RANGES,
    Parameter,
    complete,
    is_whole,
    kind_of,
)
from ampcompare.sweeps.methods import METHODS

GOALS = ("minimize", "maximize")
METRIC_EXAMPLE = "such as metric: {name: eval/accuracy, goal: maximize}"
IMPUTE = ("impute", "impute_while_running")  # for W&B's own search; Optuna's learns from finished runs alone
TEXTS = ("name", "description", "project", "entity", "program")
KEYS = ("method", "parameters", "metric", "command", "run_cap", "early_terminate", *TEXTS)
# Known to W&B, without a meaning where there is no W&B server.
ONLY_WITH_SERVER = ("controller", "image_uri", "job", "launch", "prior_runs", "scheduler")


def violations(content: Mapping[Any, Any]) -> Iterator[str]:
    """What is wrong with the content of a sweep file, each with its path in the file and what is allowed."""
    for key in content:
        if key in ONLY_WITH_SERVER:
            yield f"{key}: works with W&B's server only; leave it out, or use wandb sweep"
        elif key not in KEYS:
            yield f"{key}: no such key; {_known(key, KEYS)}"
    for key in TEXTS:
        value = content.get(key)
        if value is not None and not (_is_text(value) and value.strip()):
            yield f"{key}={value!r}: expected a text"
    method = content.get("method")
    if not isinstance(method, str) or method not in METHODS:
        said = f"method={method!r}:" if "method" in content else "method: missing;"
        yield f"{said} expected one of {', '.join(METHODS)}"
        method = None
    yield from _metric_violations(content.get("metric"), method)
    yield from _command_violations(content)
    cap = content.get("run_cap")
    if cap is not None and not is_whole(cap, 1):
        yield f"run_cap={cap!r}: expected a whole number of at least 1"
    if content.get("early_terminate") is not None:
        yield from early_violations(content["early_terminate"])
        if not content.get("metric"):
            yield "early_terminate: needs a metric to go by; add metric: {name: ..., goal: ...}"
    parameters = content.get("parameters")
    if not isinstance(parameters, dict) or not parameters:
        said = "missing" if "parameters" not in content else f"{parameters!r}"
        yield f"parameters: {said}; expected what to vary, such as backend: {{values: [none, native]}}"
    else:
        yield from _tree_violations(parameters, "parameters", method)


def _metric_violations(metric: Any, method: str | None) -> Iterator[str]:
    known = ("name", "goal", "target", *IMPUTE)
    if metric is None:
        if method and METHODS[method].needs_metric:
            yield f"metric: missing; {method} needs one to go by, {METRIC_EXAMPLE}"
        return
    if not isinstance(metric, dict):
        yield f"metric={metric!r}: expected name and goal, {METRIC_EXAMPLE}"
        return
    yield from (f"metric.{key}: no such key here; {_known(key, known)}" for key in metric if key not in known)
    name: Any = metric.get("name")
    if not (_is_text(name) and name.strip()):
        yield f"metric.name={name!r}: expected the name of a logged metric, such as eval/accuracy"
    if metric.get("goal", "minimize") not in GOALS:
        yield f"metric.goal={metric['goal']!r}: expected one of {', '.join(GOALS)}"
    if metric.get("target") is not None and not _is_number(metric["target"]):
        yield f"metric.target={metric['target']!r}: expected a number"


def _command_violations(content: Mapping[Any, Any]) -> Iterator[str]:
    command = content.get("command")
    if command is not None and not (isinstance(command, list) and command):
        yield f"command={command!r}: expected a list of words and macros, such as {list(DEFAULT_COMMAND)}"
        command = None
    for place, word in enumerate(command or ()):
        if problem := macro_problem(word):
            yield f"command[{place}]={word!r}: {problem}"
    uses_program = command is None or "${program}" in command
    if uses_program and not content.get("program"):
        yield "program: missing; expected the script to run, such as program: run_experiment.py"


def early_violations(early: Any) -> Iterator[str]:
    """What is wrong with `early_terminate`."""
    if not isinstance(early, dict):
        yield f"early_terminate={early!r}: expected such as {{type: hyperband, min_iter: 3}}"
        return
    known = ("type", "min_iter", "max_iter", "s", "eta", "strict")
    for key in (key for key in early if key not in known):
        yield f"early_terminate.{key}: no such key; {_known(key, known)}"
    if early.get("type") != "hyperband":
        yield f"early_terminate.type={early.get('type')!r}: expected hyperband"
    for key, low in (("min_iter", 1), ("max_iter", 1), ("s", 1), ("eta", 2)):
        if key in early and not is_whole(early[key], low):
            yield f"early_terminate.{key}={early[key]!r}: expected a whole number of at least {low}"
    if not isinstance(early.get("strict", False), bool):
        yield f"early_terminate.strict={early['strict']!r}: expected true or false"
    if "min_iter" in early and "s" in early:
        yield "early_terminate.s: belongs to max_iter; leave it out"
    if "min_iter" in early and "max_iter" in early:
        yield "early_terminate: min_iter and max_iter exclude each other; keep one"
    elif "max_iter" in early and "s" not in early:
        yield "early_terminate.s: missing; max_iter needs s, the number of brackets"
    elif "min_iter" not in early and "max_iter" not in early:
        yield "early_terminate.min_iter: missing; expected after how many values runs are first compared"


def _tree_violations(tree: Mapping[Any, Any], where: str, method: str | None) -> Iterator[str]:
    for name, spec in tree.items():
        at = f"{where}.{name}"
        if not _is_text(name) or not name.strip() or "=" in name:
            yield f"{at}: expected the name of an option"
        elif not isinstance(spec, dict):
            forms = "{values: [...]}, {value: ...} or {min: ..., max: ...}"
            yield f"{at}={spec!r}: expected such as {forms}"
        elif "parameters" in spec:
            if others := spec.keys() - {"parameters"}:
                yield f"{at}: a group has nothing beside parameters, found {_names(others)}"
            if not isinstance(spec["parameters"], dict) or not spec["parameters"]:
                yield f"{at}.parameters: expected options to vary"
            else:
                yield from _tree_violations(spec["parameters"], f"{at}.parameters", method)
        else:
            yield from leaf_violations(spec, at, method)


def leaf_violations(spec: Mapping[str, Any], at: str, method: str | None) -> Iterator[str]:
    """What is wrong with what one option is to be; nothing where a Parameter can be made of it."""
    kind = kind_of(spec)
    if kind is None:
        if "distribution" in spec:
            name = spec["distribution"]
            yield f"{at}.distribution={name!r}: {_known(name, tuple(DISTRIBUTIONS))}"
        else:
            found = _names(spec) or "nothing"
            yield f"{at}: expected value, values, min and max, or a distribution; found {found}"
        return
    required = DISTRIBUTIONS[kind].required
    known = ("distribution", *required, *DISTRIBUTIONS[kind].optional)
    for key in spec:
        if key not in known:
            yield f"{at}.{key}: {kind} has no such key; {_known(key, known)}"
    for key in required:
        if key not in spec:
            yield f"{at}.{key}: missing; {kind} needs it"
    wrong = list(_value_violations(kind, {key: value for key, value in spec.items() if key in known}, at))
    yield from wrong
    if wrong or not spec.keys() >= set(required):
        return
    parameter = Parameter(("",), kind, complete(kind, spec))
    try:
        if parameter.is_empty():
            yield f"{at}: no multiple of q={parameter.settings['q']} lies in the range"
        elif not all(math.isfinite(v) for v in parameter.ends()):
            raise OverflowError
    except (OverflowError, ZeroDivisionError):
        yield f"{at}: its values are beyond what a number can hold; narrow it"
    if method and METHODS[method].is_grid and not parameter.is_listed:
        others = " or ".join(name for name, m in METHODS.items() if not m.is_grid)
        todo = f"list values without probabilities, use int_uniform or q_uniform, or method {others}"
        yield f"{at}: a grid cannot run through {kind}; {todo}"


def _value_violations(kind: str, spec: Mapping[str, Any], at: str) -> Iterator[str]:
    values = spec.get("values")
    listed = values if isinstance(values, list) else []
    if "values" in spec and not listed:
        yield f"{at}.values={values!r}: expected a list of at least one value"
    given = {f"values[{i}]": value for i, value in enumerate(listed)}
    for key, value in (given if "values" in spec else {"value": spec.get("value")}).items():
        if not _is_plain(value):
            yield f"{at}.{key}={value!r}: expected text, number, true, false, null or lists of these"
    if "probabilities" in spec:
        shares = spec["probabilities"]
        if not isinstance(shares, list) or len(shares) != len(listed):
            yield f"{at}.probabilities={shares!r}: expected a list as long as values ({len(listed)})"
        elif not all(_is_number(p) and p >= 0 for p in shares) or abs(sum(shares) - 1) > 1e-6:
            yield f"{at}.probabilities={shares!r}: expected numbers of at least 0 that add up to 1"
    whole = kind == "int_uniform"
    numbers = [key for key in ("min", "max", "mu", "sigma", "a", "b", "q") if key in spec]
    wrong = [key for key in numbers if not (is_whole(spec[key]) if whole else _is_number(spec[key]))]
    for key in wrong:
        text = isinstance(spec[key], str) and _number_in(spec[key])
        hint = f" (a text in YAML; write {float(spec[key])!r})" if text else ""
        yield f"{at}.{key}={spec[key]!r}: expected a {'whole ' if whole else ''}number{hint}"
    ranged = {"min", "max"} <= spec.keys() - set(wrong)
    if ranged and spec["min"] > spec["max"]:
        yield f"{at}: min={spec['min']} is above max={spec['max']}; swap them"
    if "min" in spec and "min" not in wrong and kind in POSITIVE_RANGES and spec["min"] <= 0:
        yield f"{at}.min={spec['min']}: expected a number above 0 for {kind}"
    for key in ("sigma", "a", "b", "q"):
        if key in spec and key not in wrong and spec[key] <= 0:
            yield f"{at}.{key}={spec[key]}: expected a number above 0"
    exponents = kind in ("log_uniform", "inv_log_uniform", "q_log_uniform")
    if ranged and exponents and max(abs(spec["min"]), abs(spec["max"])) > 700:
        expected = f"expected them within -700 and 700 (see {kind}_values)"
        yield f"{at}: min and max of {kind} are exponents of e; {expected}"


def _known(word: Any, known: tuple[str, ...]) -> str:
    near = did_you_mean(word, known)
    return f"expected one of {', '.join(known)}" + (f"; {near}" if near else "")


def _names(keys: Any) -> str:
    return ", ".join(sorted(map(str, keys)))


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond 1e308
        return False


def _is_text(value: Any) -> bool:
    """A text that a command line and a file can hold: no NUL, no half of a surrogate pair."""
    return isinstance(value, str) and not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value)


def _number_in(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_text(k) and _is_plain(v) for k, v in value.items())
    return value is None or isinstance(value, bool) or _is_text(value) or _is_number(value)
