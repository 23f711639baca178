"""For scripts/compare: two hosts on one machine, as network namespaces joined by a veth, and mpirun across them.

tests/harness/hosts makes them. Every library is restricted to TCP: UCX and the MPIs find shared memory between
namespaces of one kernel, and would measure that.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

HOSTS = str(Path(__file__).resolve().parent.parent / "tests" / "harness" / "hosts")
INTERFACE = "eth0"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
TCP_ONLY = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": INTERFACE}


class Namespaces:
    """Two hosts, h0 and h1. They and their processes end with the `with` block, also after Ctrl-C and SIGTERM."""

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("compare: stopped by SIGTERM"))
        made = subprocess.run([HOSTS, "up", str(os.getpid()), "2"], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            sys.exit(f"compare: no network namespaces, which root can make: {made.stderr.strip()}")
        self.name = made.stdout.strip()
        return self

    def __exit__(self, *_):
        subprocess.run([HOSTS, "down", self.name], check=False)

    def on(self, host, command):
        """`command`, to be run on `host`."""
        return [HOSTS, "on", self.name, str(host), *command]

    def launch(self, peer, ranks, folder):
        """mpirun and its flags, for ranks on both hosts in equal numbers; keeps a file in `folder`."""
        agent = Path(folder) / "agent"
        agent.write_text(f'#!/bin/sh\nexec {HOSTS} agent {self.name} "$@"\n')
        agent.chmod(0o755)
        each = ranks // 2
        exported = {"TMPDIR": str(folder), **TCP_ONLY, **peer["env"]}
        if peer["open_mpi"]:
            words = ["--host", f"h0:{each},h1:{each}", "--mca", "plm_rsh_agent", str(agent), "--mca", "pml", "ob1", "--mca", "btl",
                     "tcp,self", "--mca", "btl_tcp_if_include", INTERFACE, "--mca", "oob_tcp_if_include", INTERFACE]
            words += [word for name in exported for word in ("-x", name)]
        else:
            words = ["-hosts", f"h0:{each},h1:{each}", "-iface", INTERFACE, "-launcher", "rsh", "-launcher-exec", str(agent)]
            words += [word for name, value in exported.items() for word in ("-genv", name, value)]
        assign = [f"{name}={value}" for name, value in exported.items()]
        return self.on(0, ["env", *assign, peer["mpirun"], "-n", str(ranks), *words])

    def limit(self):
        """GB/s that one TCP stream in each direction moves per direction, both at once; None without iperf3."""
        try:
            with subprocess.Popen(self.on(1, ["iperf3", "--server", "--one-off"]), stdout=subprocess.DEVNULL) as server:
                connected = self.on(0, ["iperf3", "--client", ADDRESSES[1], "--bidir", "--time", "2", "--json",
                                        "--connect-timeout", "5000"])
                for _ in range(50):  # until the server listens
                    ended = json.loads(subprocess.run(connected, capture_output=True, text=True, check=False).stdout).get("end", {})
                    if "sum_received" in ended:
                        break
                server.terminate()
            bits = [ended["sum_received"]["bits_per_second"], ended["sum_received_bidir_reverse"]["bits_per_second"]]
            return statistics.mean(bits) / 8e9
        except (OSError, ValueError, KeyError):
            return None
