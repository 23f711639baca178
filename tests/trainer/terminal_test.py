#!/usr/bin/env python3
"""terminal_test.py RONDO_TRAIN: rondo-train on a pseudo terminal of 80 columns, alone and through its launcher: lines for people, a
bar, a summary; Ctrl-C ends all ranks after one step with everything written; no line is torn."""
import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NO_COLOR", "RONDO_TERMINAL")
SMALL = ["--width", "16"]
SLOW = ["--batch", "256", "--pace", "1GB/s,2ms"]  # so that a run that ends late has not made thousands of steps
COLUMNS = 80
# What may stand on a line of the screen, whole.
STEP = r"step +\d+  loss \d+\.\d+ +\d+ samples/s +\d+(\.\d+)? ms, exposed \d+(\.\d+)?(  epoch \d+)?"
BAR = r"(\^C)?\[#*\.*\] step \d+ of \d+, loss .*steps/s(, .* left)?"


class Terminal:
    """A program on a terminal. `out`: everything that it has written there."""

    def __init__(self, words, **variables):
        environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER} | variables
        self.out = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs are started with it ignored
            os.execve(words[0], words, environment)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", 24, COLUMNS, 0, 0))

    def read(self):
        try:
            piece = os.read(self.fd, 65536)
        except OSError:  # Linux's way to say that nobody has the terminal open
            piece = b""
        self.out += piece
        return piece

    def await_text(self, pattern):
        while not re.search(pattern, self.out.decode()):
            assert self.read(), f"ended without '{pattern}': {self.out.decode()}"

    def press_ctrl_c(self):
        os.write(self.fd, b"\x03")

    def finish(self):
        """The exit code; below 0 a signal."""
        while self.read():
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def screen_of(out, columns=10**6):
    """The lines that stay on a screen of so many columns."""
    lines, line, column, wraps = [], [], 0, True
    for piece in re.findall(r"\x1b\[K|\x1b\[[\d;]*m|\x1b\[\?7[lh]|[^\x1b]", out.decode()):
        if piece == "\x1b[K":
            del line[column:]
        elif piece == "\r":
            column = 0
        elif piece == "\n":
            lines.append("".join(line).rstrip())
            line, column = [], 0
        elif piece.startswith("\x1b[?7"):
            wraps = piece.endswith("h")
        elif len(piece) == 1:
            if column == columns and wraps:
                lines.append("".join(line).rstrip())
                line, column = [], 0
            column = min(column, columns - 1)
            line[column:column + 1] = [piece]
            column += 1
    return lines + ["".join(line).rstrip()]


class TerminalTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "text").write_text("all ranks learn from this line of text, again and again\n" * 4000, encoding="utf-8")

    def start(self, *words, **variables):
        return Terminal([TRAIN, "--data", str(self.folder / "text"), *SMALL, *words], **variables)

    def read_json(self, name):
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def check_whole_lines(self, out):
        """Of the steps; and nothing is wider than the terminal, paths apart."""
        screen = screen_of(out)
        for line in screen:
            if str(self.folder) not in line:
                self.assertLessEqual(len(line), COLUMNS, line)
            if "samples/s" in line and not re.match(r"\d+ ranks? on ", line):
                self.assertRegex(line, f"^{STEP}$")
            self.assertNotIn("] step ", line, "the bar is gone at the end")
        return screen

    def test_a_person_sees_lines_a_bar_and_a_screen_of_summary_and_json_goes_to_a_file(self):
        for ranks in ("1", "2"):
            with self.subTest(ranks):
                terminal = self.start("--ranks", ranks, "--steps", "20", "--log-every", "10", "--json", str(self.folder / "json"))
                self.assertEqual(terminal.finish(), 0, terminal.out)
                screen = self.check_whole_lines(terminal.out)
                self.assertEqual([line[:7] for line in screen if "samples/s  " in line], ["step 10", "step 20"])
                self.assertRegex(terminal.out.decode(), BAR)
                narrow = screen_of(terminal.out, 30)
                self.assertFalse([line for line in narrow if "[#" in line or "steps/s" in line], "a narrow screen keeps no piece of a bar")
                summary = self.read_json("json")["summary"]
                text = " ".join(" ".join(screen).split())
                self.assertIn(f"to step 20: loss {summary['final_loss']:.4f}", text)
                self.assertIn(f"diagnosis: {summary['diagnosis']}", text)
                self.assertNotIn("{", text, "no JSON")
                self.assertEqual(text.count("diagnosis"), 1)

    def test_ctrl_c_ends_all_ranks_after_one_step_with_summary_json_and_trace(self):
        for ranks, flags in (("1", []), ("2", ["--trace", str(self.folder / "trace")]), ("2", ["--strategy", "dp"]),
                             ("2", ["--zero", "1", "--validation", str(self.folder / "text")])):
            with self.subTest(f"{ranks} {flags}"):
                terminal = self.start("--ranks", ranks, "--steps", "1000000", "--log-every", "10", "--json", str(self.folder / "json"),
                                      *SLOW, *flags)
                terminal.await_text("step +20 ")
                terminal.press_ctrl_c()
                self.assertEqual(terminal.finish(), 128 + signal.SIGINT, terminal.out)
                screen = self.check_whole_lines(terminal.out)
                document = self.read_json("json")
                last = document["summary"]["steps"]
                self.assertIs(document["summary"]["interrupted"], True)
                self.assertEqual([step["step"] for step in document["steps"]], list(range(1, last + 1)))
                self.assertNotIn("validation", document)
                self.assertIn(f"interrupted at step {last}: loss", "\n".join(screen))
                if "--trace" in flags:
                    steps = [{e["args"]["step"] for e in self.read_json("trace")["traceEvents"] if e["ph"] == "X" and e["pid"] == rank}
                             for rank in (0, 1)]
                    self.assertEqual(steps[0], set(range(1, last + 1)))
                    self.assertEqual(steps[1], steps[0])

    def test_an_interrupted_run_can_be_resumed(self):
        # SIGTERM to the launcher: as a scheduler ends a job.
        for ranks, by in (("1", signal.SIGINT), ("2", signal.SIGTERM), ("1", signal.SIGTERM)):
            with self.subTest(f"{ranks} {by.name}"):
                flags = ["--steps", "1000000", "--log-every", "10", *SLOW, "--ranks", ranks, "--json", str(self.folder / "json"),
                         "--checkpoint-dir", str(self.folder / f"checkpoints-{ranks}-{by.name}")]
                terminal = self.start(*flags)
                terminal.await_text("step +10 ")
                if by == signal.SIGINT:
                    terminal.press_ctrl_c()
                else:
                    os.kill(terminal.pid, by)
                    time.sleep(0.02)
                    os.kill(terminal.pid, by)  # as timeout(1), once more
                self.assertEqual(terminal.finish(), 128 + by, terminal.out)
                last = self.read_json("json")["summary"]["steps"]
                flags[1] = str(last + 1)
                terminal = self.start(*flags, "--resume")
                self.assertEqual(terminal.finish(), 0, terminal.out)
                self.assertEqual([step["step"] for step in self.read_json("json")["steps"]], [last + 1])

    def test_the_second_ctrl_c_ends_the_program_at_once(self):
        (self.folder / "text").write_bytes(b"one step takes minutes. " * 700_000)
        terminal = self.start("--batch", "16", "--steps", "1", "--accum", "1048576", "--json", str(self.folder / "json"))
        terminal.await_text("matrix products")
        ended = threading.Event()
        # More than twice: signals that come together count once.
        presses = threading.Thread(target=lambda: [terminal.press_ctrl_c() for _ in iter(lambda: ended.wait(0.05), True)])
        presses.start()
        while terminal.read():
            pass
        ended.set()
        presses.join()
        self.assertEqual(terminal.finish(), -signal.SIGINT, terminal.out)
        self.assertIn("error", self.read_json("json"))

    def test_streams_that_are_closed_are_no_file_of_the_run(self):
        """What the kernel gives to whoever opens next: a line of text would lie among the parameters."""
        losses = []
        for streams, code in ((">&2", 0), ("2>&-", 0), (">&-", 1), ("<&- >&-", 1), ("<&- >&- 2>&-", 1)):
            with self.subTest(streams):
                made = subprocess.run(["/bin/sh", "-c", f'exec "$0" "$@" {streams}', TRAIN, "--data", str(self.folder / "text"), *SMALL, "--steps", "4",
                                       "--json", str(self.folder / "json")], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                                      check=False)
                self.assertEqual(made.returncode, code, made.stderr)
                losses.append([step["loss"] for step in self.read_json("json")["steps"]])
                self.assertEqual(losses[-1], losses[0])
                self.assertEqual(len(losses[0]), 4)

    def test_messages_have_colors_on_a_terminal_unless_no_color_is_set(self):
        for variables, colored in (({}, True), ({"NO_COLOR": "1"}, False)):
            with self.subTest(variables):
                terminal = Terminal([TRAIN, "--data", "/missing"], TERM="xterm", **variables)
                self.assertEqual(terminal.finish(), 1)
                self.assertIn("/missing", terminal.out.decode())
                self.assertEqual(bool(re.search(r"\x1b\[[\d;]*m", terminal.out.decode())), colored, terminal.out)


if __name__ == "__main__":
    TRAIN = sys.argv.pop()
    unittest.main()
