#!/usr/bin/env python3
"""job_scripts_test.py ROOT BIN: scripts/jobs under an srun that is played here, and under the mpiexec of this machine or none; where
hosts can be made, also on two of them."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

root, programs = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(root / "tests/harness"))
from hosts import TOOL, Hosts  # noqa: E402

PERF = [f"{programs}/rondo-perf", "all_reduce", "-b", "8", "-e", "8K", "-n", "2", "-w", "1"]


def write_srun(place, tasks, per_node, nodes, prefix=""):
    """What srun does for a step of so many tasks, four on each node. `prefix` runs a program on the node SLURM_NODEID."""
    srun = pathlib.Path(place) / "srun"
    srun.write_text(f"""#!/bin/sh
while [ "${{1#--}}" != "$1" ]; do shift; done
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS={tasks} SLURM_STEP_TASKS_PER_NODE='{per_node}' SLURM_STEP_NODELIST='{nodes}'
pids=
for rank in $(seq 0 {tasks - 1}); do
  export SLURM_PROCID=$rank SLURM_NODEID=$((rank / 4)) SLURM_LOCALID=$((rank % 4))
  {prefix} "$@" & pids="$pids $!"
done
for pid in $pids; do wait "$pid" || exit 1; done
""")
    srun.chmod(0o755)


def clean_environment():
    return {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OMPI", "PM", "PALS", "RANK", "WORLD", "RONDO"))}


def run(script, variables, path=os.environ["PATH"]):
    job = subprocess.run([root / "scripts/jobs" / script, *PERF], env=clean_environment() | variables | {"PATH": path, "RONDO_BIN": programs},
                         capture_output=True, text=True, timeout=100)
    tables = job.stdout.count("# Out of bounds values : 0 OK")
    assert job.returncode == 0 and tables == 1 and "# ranks: 4 " in job.stdout, \
        f"{script}: exit code {job.returncode}, {tables} tables\n{job.stdout}\n{job.stderr}"


with tempfile.TemporaryDirectory() as place:
    write_srun(place, 4, "4", "node1")
    run("slurm", {"SLURM_JOB_ID": str(os.getpid()), "SLURM_NTASKS": "4"}, f"{place}:{os.environ['PATH']}")

if shutil.which("mpiexec"):
    run("pbs", {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"})
else:
    print("no mpiexec here: scripts/jobs/pbs is tested without one only")
with tempfile.TemporaryDirectory() as place:
    for tool in ("bash", "env", "sh"):
        pathlib.Path(place, tool).symlink_to(shutil.which(tool))
    run("pbs", {}, place)


def has_met(output):
    """The job has run, or its ranks have met and learned that they share no memory."""
    return "# Out of bounds values : 0 OK" in output or "is on the host of rank 0" in output


def slurm_on_hosts(hosts, place):
    write_srun(place, 8, "4(x2)", "h[0-1]", f"{TOOL} on {hosts.group} $SLURM_NODEID")
    job = subprocess.run([root / "scripts/jobs/slurm", *PERF], capture_output=True, text=True, timeout=100, env=clean_environment() | {
        "SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "PATH": f"{place}:{os.environ['PATH']}", "RONDO_BIN": programs})
    assert has_met(job.stdout + job.stderr), f"slurm on two hosts: {job.stdout}\n{job.stderr}"


def kubernetes_on_hosts(hosts):
    """The variables of kubernetes.yaml, with two pods whose names are those of hosts."""
    manifest = (root / "scripts/jobs/kubernetes.yaml").read_text()
    variables = dict(re.findall(r'- name: ([A-Z_]+)\n +value: "?([^"\n]+)"?', manifest))
    others = re.findall(r"- name: ([A-Z_]+)\n +valueFrom", manifest)
    assert others == ["RANK", "RONDO_SECRET"] and variables["MASTER_ADDR"] == "rondo-0.rondo", f"{others}, {variables}"
    assert "completions: 4\n" in manifest and variables["WORLD_SIZE"] == "4", "as many pods as ranks"
    variables |= {"MASTER_ADDR": hosts.name(0), "WORLD_SIZE": "2", "RONDO_SECRET": "s3cret"}
    pods = [subprocess.Popen(hosts.on(rank, PERF), env=clean_environment() | variables | {"RANK": str(rank)}, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in (0, 1)]
    output = "".join(pod.communicate(timeout=100)[0] for pod in pods)
    assert has_met(output), f"kubernetes on two hosts: {output}"


if subprocess.run([TOOL, "probe"], timeout=60).returncode == 0:
    with Hosts(2) as two, tempfile.TemporaryDirectory() as place:
        slurm_on_hosts(two, place)
        kubernetes_on_hosts(two)
print("scripts/jobs: ok")
