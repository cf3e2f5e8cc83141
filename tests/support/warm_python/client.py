"""What the programs of `warm_python` run: ask the server for a fork, and end as the fork ends.

Arguments: the real interpreter, the folder of the programs, and the arguments for the interpreter. Calls that
are no training and no script, such as those by which PyTorch starts its compiler's workers, are made by the
real interpreter.
"""

import array
import os
import signal
import socket
import sys

WARM_MODULES = ("ampcompare", "ampcompare.cli", "torch.distributed.run")
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def is_warm(words: list[str]) -> bool:
    """Return whether the server can run a command."""
    if words[:1] == ["-m"]:
        return words[1] in WARM_MODULES
    is_script = words[:1] != [] and words[0].endswith(".py") and "site-packages" not in words[0]
    return is_script or words[:1] == ["-c"]


def main(interpreter: str, folder: str, *words: str) -> None:
    """Run a command in a fork of the server, or in the real interpreter."""
    if not is_warm([*words]):
        os.execv(interpreter, [interpreter, *words])
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"{folder}/socket")
    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: server.send(bytes([number])))
    fields = [os.getcwd(), str(os.getpgrp()), str(len(words)), *words]
    fields += [f"{name}={value}" for name, value in os.environ.items()]
    request = os.fsencode("\0".join(fields))
    files = array.array("i", [0, 1, 2])
    header = len(request).to_bytes(8, "big")
    server.sendmsg([header], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    server.sendall(request)
    for file in files:
        os.close(file)  # a reader of the output sees its end when the fork ends
    code = int.from_bytes(server.recv(4), "big", signed=True)
    if code < 0:
        if -code in FORWARDED:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main(*sys.argv[1:])
