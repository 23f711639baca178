"""Several hosts on one machine, for tests in Python; as hosts.hpp, by the same tests/harness/hosts.

    sys.path.insert(0, f"{root}/tests/harness")
    from hosts import Hosts
    with Hosts(2) as hosts:
        subprocess.run(hosts.on(1, ["hostname"]), check=True, timeout=60)

Where hosts cannot be made, Hosts() prints the reason and exits with 77, which CTest shows as skipped (SKIP_RETURN_CODE 77).
"""
import os
import pathlib
import subprocess
import sys

TOOL = str(pathlib.Path(__file__).with_name("hosts"))


class Hosts:
    def __init__(self, count, networks=1):
        probe = subprocess.run([TOOL, "probe"], timeout=60)
        if probe.returncode != 0:
            sys.exit(probe.returncode)
        self.group = self._call("up", os.getpid(), count, networks).strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run([TOOL, "down", self.group], timeout=60)

    def _call(self, *words):
        return subprocess.run([TOOL, *map(str, words)], check=True, text=True, stdout=subprocess.PIPE, timeout=60).stdout

    @staticmethod
    def address(host, network=0):
        return f"10.{77 + network}.0.{host + 1}"

    @staticmethod
    def address_v6(host, network=0):
        return f"fd{77 + network}::{host + 1:x}"

    @staticmethod
    def name(host):
        return f"h{host}"

    def on(self, host, program):
        """The words that run `program` on `host`, in the test's directory and environment."""
        return [TOOL, "on", self.group, str(host), *program]

    def agent(self):
        """As ssh, for a launcher: these words, a host's name or address and a command line."""
        return [TOOL, "agent", self.group]

    def agent_file(self, folder):
        """The same as a program in this folder, for mpirun's plm_rsh_agent."""
        path = pathlib.Path(folder, "agent")
        path.write_text(f'#!/bin/sh\nexec {" ".join(self.agent())} "$@"\n')
        path.chmod(0o700)
        return str(path)

    def cut(self, host, network=0):
        self._call("cut", self.group, host, network)

    def mend(self, host, network=0):
        self._call("mend", self.group, host, network)

    def signal(self, host, signal):
        """To every process of the host: signal.SIGSTOP freezes it."""
        self._call("signal", self.group, host, int(signal))

    def processes(self, host):
        return [int(pid) for pid in self._call("pids", self.group, host).split()]
