#!/usr/bin/env python3
"""job_scripts_test.py ROOT BIN: scripts/jobs under an srun that is played here, and under the mpiexec of this machine or none."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

root, programs = pathlib.Path(sys.argv[1]), sys.argv[2]
PERF = [f"{programs}/rondo-perf", "all_reduce", "-b", "8", "-e", "8K", "-n", "2", "-w", "1"]

# What srun does for a step of four tasks on one node, in small.
SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=4 SLURM_NODEID=0 SLURM_STEP_NODELIST=node1
pids=
for rank in 0 1 2 3; do
  SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" & pids="$pids $!"
done
for pid in $pids; do wait "$pid" || exit 1; done
"""


def run(script, variables, path=os.environ["PATH"]):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OMPI", "PM", "PALS", "RANK", "WORLD", "RONDO"))}
    job = subprocess.run([root / "scripts/jobs" / script, *PERF], env=clean | variables | {"PATH": path, "RONDO_BIN": programs},
                         capture_output=True, text=True, timeout=100)
    tables = job.stdout.count("# Out of bounds values : 0 OK")
    assert job.returncode == 0 and tables == 1 and "# ranks: 4 " in job.stdout, \
        f"{script}: exit code {job.returncode}, {tables} tables\n{job.stdout}\n{job.stderr}"


with tempfile.TemporaryDirectory() as place:
    srun = pathlib.Path(place) / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
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
print("scripts/jobs: ok")
