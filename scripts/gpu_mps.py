"""Processes of scripts/gpu-check that share the GPU at the same time, by NVIDIA's Multi-Process Service (MPS)."""
import os
import shutil
import signal
import subprocess

from stages import PASSED, SKIPPED, last_line, session_of

CONTROL_SECONDS = 15  # after that a control command is killed
QUIT_SECONDS = 5  # after that the daemon is to end servers that still have clients
KILL_SECONDS = 5
KILLED = 9  # tests/nccl/torch_drop_in.py has killed a rank, or torch has


class Mps:
    """A daemon with pipes of its own. `words` go before a command whose processes are to share the GPU: none where that cannot be had, then
    processes take turns. After `refusal` is set, nothing may run that needs it. Nothing here raises, whatever the daemon does."""

    def __init__(self, stages, folder):
        self.stages, self.folder = stages, folder
        self.control = shutil.which("nvidia-cuda-mps-control", path=f"{os.environ.get('PATH', '')}:/usr/local/nvidia/bin")
        self.places = {name: str(folder) for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")}
        self.words, self.refusal, self.runs = [], "", False

    def start(self, program):
        """`program`: rondo-perf, of which two processes try it."""
        self.folder.mkdir(exist_ok=True)
        self.runs = self.control is not None and self.tell("-d")
        if not self.runs:
            self.kill()  # a daemon that did not answer in time
            self.stages.skip("mps", "no nvidia-cuda-mps-control here" if self.control is None else "nvidia-cuda-mps-control -d failed")
            return
        # The daemon has numbered anew what it sees: the first of that is what its clients are to use.
        seen = ["CUDA_VISIBLE_DEVICES=0"] if "CUDA_VISIBLE_DEVICES" in os.environ else []
        self.words = ["env", *(f"{name}={place}" for name, place in self.places.items()), *seen]
        probe = self.stages.run("mps", [*self.words, program, "all_reduce", "--device", "cuda", "-T", 5, "--ranks", 2, "-b", "8", "-e", "8", "-n", "1"],
                                20, lambda code, output: (SKIPPED, f"processes cannot share it so: {last_line(output)}") if code else None)
        if probe.state != PASSED:
            self.stop()

    def look_at(self, stage):
        """Ends the server if a client of it had to be killed. NVIDIA leaves undefined what then becomes of the server's other clients."""
        if self.words and stage.command and stage.exit_code in (None, KILLED):
            self.stop()
            self.refusal = f"{stage.name} hung as a client of MPS, which leaves its server undefined"

    def stop(self):
        self.words = []
        if self.runs:
            self.runs = False
            self.tell(line=f"quit -t {QUIT_SECONDS}\n")
            self.kill()

    def tell(self, *arguments, line=""):
        """Whether the control command succeeded. Its output goes to a file: the daemon would keep a pipe open."""
        words = self.folder / "words"
        try:
            words.write_text(line)
            with open(words, "rb") as given, open(self.stages.folder / "mps-control.log", "ab") as log:
                child = subprocess.Popen([self.control, *arguments], env={**os.environ, **self.places}, stdin=given, stdout=log, stderr=log)
            try:
                return child.wait(timeout=CONTROL_SECONDS) == 0
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(timeout=KILL_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            pass
        return False

    def kill(self):
        """Kills the daemon and its servers, if it still runs: it has left its process id beside its pipes, until it ends."""
        try:
            daemon = int((self.folder / "nvidia-cuda-mps-control.pid").read_text())
        except (OSError, ValueError):
            return
        for pid in {daemon, *session_of(daemon)}:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
