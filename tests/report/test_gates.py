"""`ampcompare report --require ... --summary FILE` as a gate in CI: exit codes, a line why, a block."""

import json
from pathlib import Path

import pytest

from ampcompare.cli import main


def report(capsys, *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in ("report", *words)])
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


TOO_FEW = "no verdict: a confidence interval needs at least 3 runs (n = 1)"


def test_what_is_not_shown_is_exit_code_3_and_a_line_each(three_runs: Path, tmp_path: Path, capsys):
    common = (three_runs, "--format", "json", "--out")
    fine = ("--require", "native: failures <= 0", "--require", "apex_o1: failures <= 0")
    assert report(capsys, *common, tmp_path / "fine", *fine)[::2] == (0, "")
    code, plain, err = report(capsys, *common, tmp_path / "plain")
    assert (code, err) == (0, "")
    terms = "native: speedup >= 1.1, failures <= 0"
    code, out, err = report(capsys, *common, tmp_path / "gate", "--require", terms)
    assert code == 3
    assert err.splitlines() == [f"not passed: native: speedup >= 1.1: {TOO_FEW}"]
    assert out.replace("gate", "plain") == plain
    content = json.loads((tmp_path / "gate" / "comparison.json").read_text())
    assert [(r["term"], r["shown"]) for r in content["requirements"]] == [
        ("speedup >= 1.1", False),
        ("failures <= 0", True),
    ]


def test_the_summary_is_added_to_what_is_there(three_runs: Path, tmp_path: Path, capsys):
    summary = tmp_path / "new" / "step.md"
    words = (three_runs, "--format", "csv", "--out", tmp_path / "out", "--summary", summary)
    for _ in range(2):
        report(capsys, *words, "--require", "native: speedup >= 1.1")
    text = summary.read_text("utf-8")
    assert text.count("### Accuracy: no verdict for native (n = 1)") == 2
    assert text.count(f"- **not passed**: native: speedup \\>= 1.1 ({TOO_FEW})") == 2


MISTAKES = [
    ("--require|nativ: speedup >= 1", "no such group; did you mean native?"),
    ("--require|native: faster", "is not a requirement"),
    ("--target|nan", "--target nan"),
    ("--target|500", "--target 500: expected a value of eval accuracy between 0% and 100%"),
    ("--within|1", "--within 1: expected a fraction"),
    ("--margin|-1", "--margin -1: expected a number above 0"),
    ("--format|html,pdf", "--format 'pdf': expected some of html, csv, md, json, png, svg, or all"),
    ("--format|,", "--format '': expected some of html"),
    ("--group-by|,", "--group-by '': expected keys"),
    ("--group-by|batchsize", "did you mean batch_size?"),
    ("--ignore|sed", "no run has this setting"),
    ("--baseline|nativ", "--baseline 'nativ': no run has this value; did you mean native?"),
    ("--metric|eval/acuracy", "did you mean eval/accuracy?"),
    ("--summary|/dev/null/x", "--summary /dev/null/x"),
    ("--reproduce|nobody", "expected a file or one of apex-478, "),
    ("--reproduce|ignite|--group-by|batch_size", "none of 3 runs matches the publication: "),
    ("--out|{tmp}/file", "cannot be written to"),
    ("--out|{tmp}/file/below", "cannot be written to"),
    ("--format|html|--out|{tmp}/taken", "cannot be written"),
    ("{tmp}/absent", "absent: no such folder"),
    ("{tmp}/file", "no run can be read from it"),
]


def test_a_mistake_is_exit_code_2_and_a_line(
    three_runs: Path, tmp_path: Path, capsys, subtests: pytest.Subtests
):
    (tmp_path / "file").write_text("some text, not a run")
    (tmp_path / "taken" / "index.html").mkdir(parents=True)
    for words, message in MISTAKES:
        with subtests.test(words=words):
            given = words.format(tmp=tmp_path).split("|")
            code, _, err = report(capsys, three_runs, "--format", "csv", "--out", tmp_path, *given)
            assert (code, err.count("\n")) == (2, 1), err
            assert message in err
            assert not list(tmp_path.glob("**/.index.html.*"))
