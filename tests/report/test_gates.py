"""`ampcompare report --require ... --summary FILE` as a gate in CI: exit codes, a line why, a block."""

import json

import pytest

TOO_FEW = "no verdict: a confidence interval needs at least 3 runs (n = 1)"


def test_what_is_not_shown_is_exit_code_3_and_a_line_each(three_runs, tmp_path, command):
    def ask(name: str, *terms: str):
        gates = [word for term in terms for word in ("--require", term)]
        return command("report", three_runs, "--format", "json", "--out", tmp_path / name, *gates)

    assert ask("fine", "native: failures <= 0", "apex_o1: failures <= 0")[::2] == (0, "")
    code, out, err = ask("gate", "native: speedup >= 1.1, failures <= 0")
    assert (code, err) == (3, f"not passed: native: speedup >= 1.1: {TOO_FEW}\n")
    assert ask("plain") == (0, out.replace("gate", "plain"), "")
    content = json.loads((tmp_path / "gate" / "comparison.json").read_text())
    answers = {answer["term"]: answer["shown"] for answer in content["requirements"]}
    assert answers == {"speedup >= 1.1": False, "failures <= 0": True}


def test_the_summary_is_added_to_what_is_there(three_runs, tmp_path, command):
    summary = tmp_path / "new" / "step.md"
    words = ("--format", "csv", "--out", tmp_path / "out", "--summary", summary)
    for _ in range(2):
        command("report", three_runs, *words, "--require", "native: speedup >= 1.1")
    text = summary.read_text("utf-8")
    assert text.count("### ") == 2
    assert text.count(f"- **not passed**: native: speedup \\>= 1.1 ({TOO_FEW})") == 2


MISTAKES = """
--require|nativ: speedup >= 1 -> no such group; did you mean native?
--require|native: faster -> is not a requirement
--target|nan -> --target nan
--target|500 -> --target 500: expected a value of eval accuracy between 0% and 100%
--within|1 -> --within 1: expected a fraction
--margin|-1 -> --margin -1: expected a number above 0
--format|html,pdf -> --format 'pdf': expected some of html, csv, md, json, png, svg, or all
--format|, -> --format '': expected some of html
--group-by|, -> --group-by '': expected keys
--group-by|batchsize -> did you mean batch_size?
--ignore|sed -> no run has this setting
--baseline|nativ -> --baseline 'nativ': no run has this value; did you mean native?
--metric|eval/acuracy -> did you mean eval/accuracy?
--summary|/dev/null/x -> --summary /dev/null/x
--reproduce|nobody -> expected a file or one of apex-478,
--reproduce|ignite|--group-by|batch_size -> none of 3 runs matches the publication:
--out|{tmp}/file -> cannot be written to
--out|{tmp}/file/below -> cannot be written to
--format|html|--out|{tmp}/taken -> cannot be written
{tmp}/absent -> absent: no such folder
{tmp}/file -> no run can be read from it
"""


def test_a_mistake_is_exit_code_2_and_a_line(three_runs, tmp_path, command, subtests: pytest.Subtests):
    (tmp_path / "file").write_text("some text, not a run")
    (tmp_path / "taken" / "index.html").mkdir(parents=True)
    for line in MISTAKES.strip("\n").splitlines():
        words, _, message = line.partition(" -> ")
        with subtests.test(words=words):
            typed = words.format(tmp=tmp_path).split("|")
            code, _, err = command("report", three_runs, "--format", "csv", "--out", tmp_path, *typed)
            assert (code, err.count("\n")) == (2, 1), err
            assert message in err
            assert not list(tmp_path.glob("**/.index.html.*"))
