"""The process that `warm_python` forks: it has loaded what a training loads.

Of two processes for each call, the first one forwards signals and reports the end, and the second one runs
the program. Arguments: the folder of the programs, which gets the socket, and the process with which the
server ends.
"""

import array
import atexit
import contextlib
import gc
import importlib
import importlib.util
import os
import select
import shutil
import signal
import socket
import sys
import threading
import types
from dataclasses import dataclass
from typing import NoReturn

# PyTorch and W&B's client load these when a training begins.
LOADED = ("ampcompare.experiment", "ampcompare.cli", "torch._inductor", "wandb.sdk.launch")


@dataclass
class Call:
    """A call of a program.

    Attributes:
        folder: The folder in which it was called.
        group: Its process group.
        words: Its arguments.
        environment: All its variables.
        files: Its standard input, output and error.
    """

    folder: str
    group: int
    words: list[str]
    environment: dict[str, str]
    files: list[int]


def read_call(client: socket.socket) -> Call:
    """Receive a call."""
    room = socket.CMSG_SPACE(3 * array.array("i").itemsize)
    header, ((_, _, sent), *_), *_ = client.recvmsg(8, room)
    files = array.array("i", sent)
    request = b""
    while len(request) < int.from_bytes(header, "big"):
        request += client.recv(1 << 20)
    folder, group, count, *rest = os.fsdecode(request).split("\0")
    words, variables = rest[: int(count)], rest[int(count) :]
    environment = dict(variable.split("=", 1) for variable in variables)
    return Call(folder, int(group), words, environment, files.tolist())


def serve(folder: str, main: int) -> Call:
    """Fork for each call until the process `main` ends; return a call in the process that has to run it."""
    ended = os.pidfd_open(main)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/socket")
    listener.listen(64)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the fork through its client
    print("ready", flush=True)
    while True:
        ready, *_ = select.select([listener, ended], [], [])
        collect_children()
        if ended in ready:
            shutil.rmtree(folder, ignore_errors=True)
            os.unlink(f"{folder}.lock")
            os._exit(0)
        client, _ = listener.accept()
        if not os.fork():
            listener.close()
            os.close(ended)
            return run_call(client)
        client.close()


def collect_children() -> None:
    """Collect the forks that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def run_call(client: socket.socket) -> Call:
    """Return the call in a fork of its own; here, wait for the end of the fork and report it."""
    call = read_call(client)
    pid = os.fork()
    if not pid:
        client.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return call
    for file in call.files:
        os.close(file)
    ended = os.pidfd_open(pid)
    while True:
        ready, *_ = select.select([client, ended], [], [])
        if ended in ready:
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):
                client.sendall(code.to_bytes(4, "big", signed=True))
            os._exit(0)
        # A client that was killed can forward nothing more.
        for number in client.recv(64) or [signal.SIGKILL]:
            signal.pidfd_send_signal(ended, number)


def take_over(call: Call) -> None:
    """Give this process the group, folder, environment and files of the call."""
    try:
        os.setpgid(0, call.group)
    except PermissionError:  # the caller is in another session
        os.setpgid(0, 0)
    os.chdir(call.folder)
    for number, file in enumerate(call.files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(call.environment)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  the interpreter's own files are never closed
    sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def begin_program(call: Call, python: str) -> tuple[types.CodeType, types.ModuleType]:
    """Return the code that the arguments name, and the module `__main__` for it."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    kind, *rest = call.words
    if kind == "-m":
        name = "ampcompare.__main__" if rest[0] == "ampcompare" else rest[0]
        main.__spec__ = importlib.util.find_spec(name)
        main.__file__ = main.__spec__.origin
        code = main.__spec__.loader.get_code(name)
        sys.argv, sys.path[0] = [main.__file__, *rest[1:]], call.folder
    elif kind == "-c":
        code = compile(rest[0], "<string>", "exec")
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
    else:
        main.__file__ = kind
        with open(kind, "rb") as file:
            code = compile(file.read(), kind, "exec")
        sys.argv, sys.path[0] = [kind, *rest], os.path.dirname(os.path.abspath(kind))
    added = call.environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in added if path and path not in sys.path]
    sys.modules["__main__"] = main
    sys.executable, sys.orig_argv = python, [python, *call.words]
    return code, main


def run_program(code: types.CodeType, main: types.ModuleType) -> int:
    """Run the program and return its exit code."""
    try:
        exec(code, main.__dict__)
    except SystemExit as problem:
        if problem.code is None:
            return 0
        if isinstance(problem.code, int):
            return problem.code
        print(problem.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def end(code: int) -> NoReturn:
    """End as an interpreter does, but for the removal of each module, which takes longer than a command."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


gc.disable()
for name in LOADED:
    importlib.import_module(name)
gc.freeze()  # no fork visits what is loaded here
gc.enable()
programs = sys.argv[1]
call = serve(programs, int(sys.argv[2]))
take_over(call)
end(run_program(*begin_program(call, os.path.join(programs, "python"))))
