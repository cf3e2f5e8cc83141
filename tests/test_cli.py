"""The command line and the entrypoint as a user meets them: help, messages, exit codes, what a run leaves."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from support import warm_python
from support.fakes import plan
from support.quick import QUICK, ROOT
from support.shell import run_in_shell
from support.wandb_files import write_runs
from wandb.sdk.lib.config_util import save_config_file_from_dict

from ampcompare import __version__, load_runs
from ampcompare.analysis.grouping.backend_info import label_of
from ampcompare.cli import app, main
from ampcompare.config import option_help
from ampcompare.config.schema import OPTIONS, find_option
from ampcompare.report.options import ReportOptions


def load_make_cli() -> Any:
    """Return the script that writes docs/cli.md, as a module."""
    spec = importlib.util.spec_from_file_location("make_cli", ROOT / "docs" / "make_cli.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_cli = load_make_cli()


@pytest.fixture
def runs(tmp_path) -> Path:
    backends = ("none", "native", "apex_o1")
    plans = [plan(b, source="synthetic", device="Test CPU", device_type="cpu") for b in backends]
    plans[2]["wandb"]["name"] = "\x1b[31m[bold]</script>"
    write_runs(tmp_path / "runs", plans)
    return tmp_path / "runs"


def ampcompare(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ampcompare.cli", *map(str, arguments)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")} | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


WRONG = [
    ((), "Missing command; see ampcompare --help, or begin with ampcompare demo"),
    (("demo", "epochs=1", "backend=native"), "run --config demo epochs=1 backend=native"),
    (("nonsense",), "No such command 'nonsense'"),
    (("run", "backend=O1"), "backend='O1': expected one of none, tf32, native, native_bf16"),
    (("run", "--config", "nowhere"), "--config 'nowhere': no such file; expected a path or one of demo, "),
    (("run", "--config", str(ROOT / "sweeps/loss_scale.yaml")), "this is a sweep, not a config"),
    (("run", "--config=demo", "device=cuda:99"), "this device does not exist here; PyTorch sees"),
    (("run", "--config=demo", "output_dir=/proc/nothing"), "'/proc/nothing': cannot be written"),
    (
        ("sweep", "compare_backends", "--backend=none"),
        "write options of a run without dashes, as backend=VALUE",
    ),
    (("sweep",), "Missing argument 'FILE'; for example: ampcompare sweep compare_backends; see ampcompare"),
    (("sweep", "net.py"), "net.py: a sweep file is YAML, not Python; for your own network: "),
    (("sweep", "compare_backends", "backend=none", "native_bf16"), "did you mean backend=none,native_bf16?"),
    (("bench", "backend=none", "native"), "did you mean backend=none,native?"),
    (("sweep", "compare_backends", "epochs=1", "2"), "'2': expected key=value, such as backend=native"),
    (("report", "a", "--out"), "requires an argument; see ampcompare report --help"),
    (("report", "a", "--nonsense"), "No such option"),
    (("report", "a", "--margin", "much"), "margin"),
    (("report", "wandb:entity/project"), "wandb.mode=offline"),
    (("report", "{tmp}/a\nb\x1b[2J"), r"a b\x1b[2J: no such folder"),
]


@pytest.mark.slow
def test_wrong_use_is_one_line_and_exit_code_2(tmp_path, capsys, subtests: pytest.Subtests):
    for arguments, words in WRONG:
        with subtests.test(arguments=arguments, words=words):
            with pytest.raises(SystemExit) as end:
                main([a.format(tmp=tmp_path) for a in arguments])
            output = capsys.readouterr().err
            assert end.value.code == 2
            assert re.fullmatch(r"error: [^\n]+\n", output), output
            assert words in output


def test_help_names_the_commands_and_every_option_and_version_is_the_packages():
    assert "New here? `ampcompare demo`" in " ".join(ampcompare("--help").stdout.split())
    assert ampcompare("--version").stdout == f"ampcompare {__version__}\n"
    often = ampcompare("run", "--help").stdout
    assert often.startswith("Usage: ampcompare run ")
    assert "none, tf32, native, native_bf16, " in " ".join(often.split())
    every = " ".join(ampcompare("run", "--help-all").stdout.split())
    for spec in OPTIONS.values():
        default = option_help.default_text(spec)
        assert f"{spec.key}={default} {spec.help} Allowed: {spec.allowed}." in every


COMMANDS = ",run,report,sweep,reproduce,bench,demo,doctor,workspace,why,why explain,why diff,why guard".split(
    ","
)


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_the_list_of_commands_here_is_complete():
    root = typer.main.get_command(app)
    names = {name.removeprefix("ampcompare").strip() for name, _ in make_cli.walk(root, "ampcompare")}
    assert names == {*COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_fits_80_columns_and_has_examples_that_parse(command: str, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    output = help_of(command, capsys)
    assert max(map(len, output.splitlines())) <= 80
    assert not re.search(r"<\w", output), "a type of Python instead of a readable name"
    assert not re.search(r"^  \S.*\.\.\.$", output, re.M), "a summary that was cut"
    assert examples_in(output)
    for example in examples_in(output):
        check(example)


def examples_in(output: str) -> list[str]:
    """Return the commands under `Examples:`, each in one line."""
    text = output.partition("Examples:\n")[2].partition("Exit codes:")[0].replace("\\\n", " ")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize(
    "file", sorted([*ROOT.glob("configs/*.yaml"), *ROOT.glob("sweeps/*.yaml")]), ids=lambda f: f.stem
)
def test_the_commands_in_the_comments_of_a_bundled_file_parse(file: Path):
    commands = re.findall(r"^#   (ampcompare .*?)(?:  #.*)?$", file.read_text(), re.M)
    assert commands
    for command in commands:
        assert file.stem in command or file.parent.name == "configs"
        check(command)


def check(example: str) -> None:
    """Assert that a command exists, that it has these options, and that the options of a run exist."""
    program, *words = shlex.split(example.partition(" > ")[0])
    assert program == "ampcompare"
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    if words == ["--help"]:
        return
    context = command.make_context(command.name, words)
    if command.name == "report":
        ReportOptions.from_command_line(context.params)
        return
    many = [value for value in context.params.values() if isinstance(value, list)]
    keys = [word.partition("=")[0] for value in many for word in value if "=" in word]
    assert [key for key in keys if not find_option(key) and not key.startswith("slurm.")] == []


def test_the_page_of_the_command_line_is_that_of_the_help():
    assert make_cli.PAGE.read_text() == make_cli.write_page(), "docs/cli.md is old: run make docs"


LOADED = """
import sys
from ampcompare.cli import main
try:
    main(sys.argv[1:])
finally:
    print(*({"torch", "wandb", "pandas", "scipy.stats", "vl_convert"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("words", "code", "loaded"),
    [
        (["--help"], 0, set()),
        (["sweep", "loss_scale", "--show"], 0, set()),
        (["report", "absent"], 2, {"pandas"}),
        # vl_convert makes the charts' script for the first page on a machine, which is kept.
        pytest.param(
            ["report", "{runs}", "--format=html"], 0, {"pandas", "vl_convert"}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_process_loads_what_it_needs_and_ends_with_the_code(words, code: int, loaded, request, tmp_path):
    """scipy.stats takes a second to import; `scipy.special` has the distributions."""
    if "{runs}" in words:
        words = ["report", str(request.getfixturevalue("runs")), *words[2:]]
    command = [sys.executable, "-c", LOADED, *words]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.count("error: ") == done.stderr.count("\n") == int(code > 0)
    assert {*done.stdout.splitlines()[-1].split()} <= loaded


def test_a_reader_who_leaves_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "ampcompare", "sweep", "compare_backends", "--show"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def launch(*words: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    command = [warm_python.python(), str(ROOT / "run_experiment.py"), *words]
    return subprocess.run(command, cwd=cwd, env=os.environ | env, capture_output=True, text=True)


@pytest.mark.slow
def test_a_run_says_where_its_record_is_and_how_to_see_it(tmp_path: Path):
    out = tmp_path / "a folder with spaces"
    words = ("--config=demo", *QUICK, f"output_dir={out}", "wandb.mode=auto", "backend=native")
    done = launch(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no W&B account, so this run is recorded offline" in done.stdout
    (run,) = load_runs([out])
    record = next(out.rglob("*.wandb")).parent
    assert f"record: {record}" in done.stdout
    sync, see, live = (line[8:] for line in done.stdout.splitlines()[-3:])
    assert sync.endswith(f"wandb sync '{record}'")
    assert "wandb leet" in live
    assert "WARNING" not in done.stdout + done.stderr
    assert run_in_shell(see, tmp_path).returncode == 0
    assert (tmp_path / "report" / "index.html").is_file()
    for command in (sync, live):  # they need an account and a terminal
        assert run_in_shell(f"{command} --help", tmp_path).stdout.startswith("Usage: ")
    assert "step 2/8" in done.stdout
    assert run.state == "finished"
    assert run.name == "native_tiny_synthetic"
    assert run.group == "demo"


@pytest.mark.slow
def test_a_point_of_wandbs_sweep_that_scales_nothing_trains_and_says_so(tmp_path: Path):
    """W&B's agent hands out every point of a grid: were it refused, none of `none` would be left."""
    chosen = {"backend": "none", "precision.loss_scale": 128}
    file = tmp_path / "sweep-x" / "config-y.yaml"
    save_config_file_from_dict(str(file), {key: {"value": value} for key, value in chosen.items()})
    words = [f"{key}={value}" for key, value in chosen.items()]
    done = launch(*QUICK, *words, f"output_dir={tmp_path}", WANDB_SWEEP_PARAM_PATH=str(file))
    assert done.returncode == 0, done.stderr
    (output,) = (line for line in done.stdout.splitlines() if "no effect" in line)
    assert output.startswith("precision.loss_scale=128")
    assert output.endswith("no effect: backend=none is fp32")
    (run,) = load_runs([tmp_path])
    assert label_of(run) == "none"
