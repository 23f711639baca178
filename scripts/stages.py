"""Runs commands in order, each with a time limit; for scripts/gpu-check, whose commands may hang."""
import dataclasses
import os
import shlex
import signal
import subprocess
import time

PASSED, FAILED, HUNG, SKIPPED = "passed", "failed", "hung", "skipped"
# Grace time of a killed command. One that waits for a device inside the kernel may never end.
LAST_SECONDS = 5


@dataclasses.dataclass
class Stage:
    name: str
    state: str
    reason: str = ""  # for every state but `passed`
    command: str = ""
    seconds: float = 0
    exit_code: int | None = None
    log: str = ""

    def text(self):
        """The text of a report: `hung after 60 s`."""
        return self.reason if self.state == HUNG else self.state + (f": {self.reason}" if self.reason else "")


def last_line(text):
    """What rondo-run adds below its ranks' lines says which rank, not why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith("rondo-run: ")]
    return (own or lines or ["it printed nothing"])[-1]


def session_of(leader):
    """The processes of a session, in any process group."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[3]) == leader:
            yield int(name)


class Stages:
    """Runs stages, keeps their results, and calls `changed` after each. `shorten` removes this machine's paths from kept texts."""

    def __init__(self, folder, seconds, limits, changed, shorten):
        self.folder, self.limits, self.changed, self.shorten = folder, limits, changed, shorten
        self.end = time.monotonic() + seconds
        self.part, self.part_end = "", self.end
        self.done = []
        self.child = None
        folder.mkdir(parents=True, exist_ok=True)

    def left(self):
        return min(self.end, self.part_end) - time.monotonic()

    def begin_part(self, name, end):
        """The stages that follow may run until `end`, so that stages that hang leave time to other parts."""
        self.part, self.part_end = name, min(end, self.end)

    def add(self, stage):
        self.done.append(stage)
        print(f"gpu-check: {stage.name}: {stage.text()}" + (f" ({stage.seconds:.1f} s)" if stage.command else ""), flush=True)
        self.changed()
        return stage

    def skip(self, name, reason):
        return self.add(Stage(name, SKIPPED, reason))

    def run(self, name, command, limit, judge=None):
        """`limit` in seconds, at most the time left. `judge(exit_code, output)` may return a (state, reason) that replaces the exit
        code's, or None."""
        command = [str(word) for word in command]
        limit = self.limits.get(name, limit)
        stage = Stage(name, FAILED, command=self.shorten(shlex.join(command)), log=f"logs/{name}.log")
        if self.left() < 1:
            stage.reason, stage.log = "not run: no time was left" + (f" for {self.part}" if self.part else ""), ""
            return self.add(stage)
        begin = time.monotonic()
        path = self.folder / f"{name}.log"
        with open(path, "wb") as log:
            left = self.left()
            stage.state, stage.reason, stage.exit_code = self._run(command, min(limit, left), log)
        stage.seconds = time.monotonic() - begin
        if stage.state == HUNG and left < limit:
            stage.state = FAILED
            stage.reason = f"cut off after {left:.0f} s: no time was left" + (f" for {self.part}" if self.part else "")
        if stage.state in (PASSED, FAILED):
            output = path.read_text(errors="replace")
            if stage.state == FAILED and not stage.reason:
                how = f"exit code {stage.exit_code}" if stage.exit_code >= 0 else f"ended by signal {-stage.exit_code}"
                stage.reason = f"{how}: {last_line(output)[:300]}"
            judged = judge and judge(stage.exit_code, output)
            if judged:
                stage.state, stage.reason = judged
        stage.reason = self.shorten(stage.reason)
        return self.add(stage)

    def _run(self, command, limit, log):
        ending = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, ending)  # until `child` is what kill() has to end
        try:
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                                          preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, ending))
        except OSError as error:
            return FAILED, str(error), None
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)
        try:
            code = self.child.wait(timeout=limit)
            self.kill()  # its remaining processes would disturb the next stages
            return (PASSED if code == 0 else FAILED), "", code
        except subprocess.TimeoutExpired:
            stays = "" if self.kill() else ", and does not die"
            return HUNG, f"hung after {limit:.0f} s{stays}", None

    def kill(self):
        """Kills the child with all its descendants; returns whether it is gone."""
        if self.child is None:
            return True
        for pid in session_of(self.child.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            self.child.wait(timeout=LAST_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        self.child = None
        return True
