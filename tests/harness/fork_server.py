"""A Python program whose imports take long: they are done once, and each process of the program is a fork. For tests in Python:

    with ForkServer("ranks.py") as ranks:  # a program with a function main()
        subprocess.run(["rondo-run", "-n", "2", *ranks.words, "CASE"], timeout=60)

`words` start a small process, the stand-in, whose place in a job a fork takes: the fork has its arguments, environment, output, folder,
CPUs and host (hosts.py), and dies with it; the stand-in ends as its fork ends. Variables that the imports read are the test's own.
"""
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile

NAMESPACES = ("uts", "net", "mnt")
PR_SET_PDEATHSIG = 1
IMPORT_SECONDS = 300  # at most; an idle machine takes 3


class ForkServer:
    """Ends the test as the program does if it ends on import: with 77, and a printed reason, it is skipped."""

    def __init__(self, program):
        self._folder = tempfile.TemporaryDirectory()
        path = os.path.join(self._folder.name, "socket")
        # What the imports print goes to stderr; this pipe says when they are over.
        reading, writing = os.pipe()
        self._process = subprocess.Popen([sys.executable, __file__, "--serve", path, str(writing), program], stdout=subprocess.PIPE,
                                         text=True, pass_fds=[writing])
        os.close(writing)
        ready = select.select([reading], [], [], IMPORT_SECONDS)[0] and os.read(reading, 1)
        os.close(reading)
        if not ready:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            self._process.kill()
            print(self._process.communicate()[0])
            sys.exit(self._process.returncode)
        self.words = [sys.executable, "-IS", __file__, path]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()


def serve(path, ready, program):
    """Returns in each fork, as a process that has just started the program."""
    die_with_parent(os.getppid())
    sys.path.insert(0, os.path.dirname(program))
    module = importlib.import_module(pathlib.Path(program).stem)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lack the threads that the imports have started"
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(100)
    os.write(int(ready), b"1")
    os.close(int(ready))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = os.getpid()
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            break
        connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener.close()
    watch(connection, server)
    module.main()


def watch(connection, server):
    """For one stand-in: returns in its fork."""
    die_with_parent(server)
    request, files, _, _ = socket.recv_fds(connection, 1 << 20, 3 + len(NAMESPACES))
    watcher = os.getpid()
    fork = os.fork()
    if fork == 0:
        die_with_parent(watcher)
        connection.close()
        return take_place(files, **json.loads(request))
    ended = os.pidfd_open(fork)
    if ended not in select.select([connection, ended], [], [])[0]:  # the stand-in was killed
        os.kill(fork, signal.SIGKILL)
    _, status = os.waitpid(fork, 0)
    with contextlib.suppress(BrokenPipeError):
        connection.send(str(status).encode())
    os._exit(0)


def take_place(files, arguments, environment, folder, cpus, group):
    with contextlib.suppress(OSError):  # of another session: then signals reach the stand-in alone
        os.setpgid(0, group)
    for target, file in enumerate(files[:3]):
        os.dup2(file, target)
    for name, file in zip(NAMESPACES, files[3:]):
        if os.fstat(file).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino and ctypes.CDLL(None).setns(file, 0) != 0:
            raise OSError(f"cannot enter the namespace {name}")
    for file in files:
        os.close(file)
    os.chdir(folder)
    os.sched_setaffinity(0, cpus)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    signal.signal(signal.SIGINT, signal.default_int_handler)


def stand_in(path, *arguments):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd(), "cpus": [*os.sched_getaffinity(0)],
               "group": os.getpgrp()}
    namespaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2, *namespaces])
    status = int(connection.recv(100) or signal.SIGKILL)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    sys.exit(os.waitstatus_to_exitcode(status))


def die_with_parent(parent):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # which has ended before the call
        os._exit(1)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(*sys.argv[2:])
    else:
        stand_in(*sys.argv[1:])
