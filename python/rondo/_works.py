"""What the backend returns for an operation, and the threads that complete futures."""
import contextlib
import datetime
import os
import queue
import threading
import time

import torch
import torch.distributed as dist


def not_compiled(cls):
    """Keeps torch.compile from this class: in DDP's second step it would compile, for a second, what calls C++ only. (torch.compiler.disable
    would import all of Dynamo.)"""
    try:
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)  # what it calls, too
        for function in vars(cls).values():
            if hasattr(function, "__code__"):
                frames.set_code_exec_strategy(function.__code__, skip)
    except AttributeError:
        pass  # another version of PyTorch: then it compiles
    return cls


class Completion:
    """Threads that wait for operations: each for one, so that futures are completed in any order, and a callback of one may wait for
    another. A thread that has nothing to do is used again."""

    idle = 0  # threads of this process that have nothing to do
    counting = threading.Lock()
    is_over = False  # the interpreter ends: no thread may be left, and callers wait themselves

    def __init__(self):
        self._tasks = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._threads, self._idle, self._ending = set(), 0, False
        self._process = os.getpid()

    def has_threads(self):
        return bool(self._threads) and self._process == os.getpid()  # a forked child has none

    def start(self, task):
        if Completion.is_over:
            task()
            return
        with self._changed:
            if self._idle > 0:
                self._tasks.put(task)
                self._count_idle(-1)
                return
            thread = threading.Thread(target=self._run, name="rondo-futures", daemon=True)
            thread.start()
            self._threads.add(thread)  # not one that could not be started
            self._tasks.put(task)

    def end(self):
        """Waits for what has been started, also by a callback meanwhile. A callback may end it, too, and does not wait for itself."""
        with self._changed:
            self._ending = True
            for _ in range(self._idle):
                self._tasks.put(None)
            self._count_idle(-self._idle)
            self._changed.wait_for(lambda: self._threads <= {threading.current_thread()})

    def _count_idle(self, change):
        self._idle += change
        with Completion.counting:
            Completion.idle += change

    def _run(self):
        try:
            while (task := self._tasks.get()) is not None:
                task()
                del task
                with self._changed:
                    if self._ending:
                        break
                    self._count_idle(1)
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())
                self._changed.notify_all()


def _begin_child():
    """After fork() there are no such threads."""
    Completion.idle, Completion.counting = 0, threading.Lock()


os.register_at_fork(after_in_child=_begin_child)


@not_compiled
class RondoWork(dist._Work):
    """What an operation returns: `works` (rondo.Work) is empty if it has ended. `after` copies to where the caller wants it; the Work
    has ended after that, which happens without the caller's help. It is in the set `outstanding` until somebody knows of its end."""

    def __init__(self, result, works=(), completion=None, after=None, outstanding=None, receives=False):
        super().__init__()
        self._result, self._works, self._completion, self._after = result, works, completion, after
        self._outstanding, self.receives = outstanding, receives
        self._future = self._failure = None
        self._lock = threading.Lock()
        if outstanding is not None:
            outstanding.add(self)
        if after is not None:
            completion.start(self.settle)

    def watch(self, row):
        """For torch's profiler: the row ends with the operation, before anybody learns of its end, for the profiler frees its rows when
        it ends."""
        self._future = row._call_end_callbacks_on_future(self.get_future())

    def finish(self):
        """Waits, also for the future to have its value, which callers read then; returns the result. By any thread, any number of times."""
        try:
            return self._finish()
        finally:
            if not self._future_has_ended() and self._have_ended():
                with contextlib.suppress(Exception):  # the operation's
                    self._future.wait()

    def _have_ended(self):
        return all(work.test() for work in self._works)

    def _future_has_ended(self):
        return self._future is None or self._future.done()

    def _finish(self):
        try:
            for work in self._works:
                work.wait()
        finally:
            if self._outstanding is not None and self._have_ended():  # not after Ctrl-C
                self._outstanding.discard(self)
        if self._after is not None:
            with self._lock:
                if self._after is not None:
                    self._after()
                    self._after = None
        return self._result

    def settle(self):
        """As finish(), keeping the failure."""
        try:
            self._finish()
        except Exception as failure:  # noqa: BLE001
            self._failure = failure.with_traceback(None)  # its frames hold this Work

    def wait(self, timeout=None):
        if timeout is not None and timeout > datetime.timedelta(0):
            end = time.monotonic() + timeout.total_seconds()
            while not self._have_ended():
                if time.monotonic() >= end:
                    raise RuntimeError(f"rondo: the operation has not ended after {timeout.total_seconds()} s (it goes on)")
                time.sleep(0.0001)
        self.finish()
        return True

    def is_completed(self):
        if not self._have_ended() or not self._future_has_ended():
            return False
        if self._failure is None:
            self.settle()
        return True

    def is_success(self):
        return self.is_completed() and self._failure is None

    def exception(self):
        return self._failure if self.is_completed() else None

    def result(self):
        return self._result

    def source_rank(self):
        if len(self._works) != 1 or (envelope := self._works[0].envelope) is None:
            raise RuntimeError("only a receive has a source")
        return envelope.source

    _source_rank = source_rank

    def synchronize(self):
        self.finish()

    def get_future(self):
        if _asked.active:
            _asked.found = self
            return _NO_FUTURE
        if self._future is None:
            begun = torch.futures.Future()
            future = begun.then(lambda _: self._finish())  # an exception becomes the future's, also for C++
            if self._have_ended():
                begun.set_result(None)
            else:
                self._completion.start(lambda: begun.set_result(None))
            self._future = future  # which will end
        return self._future


class _Asked(threading.local):
    active, found = False, None


_asked = _Asked()
_NO_FUTURE = torch.futures.Future()


def _inside(work):
    """The RondoWork that is wrapped in one of torch's, or None."""
    _asked.active = True
    try:
        work.get_future()
        return _asked.found
    except RuntimeError:  # another backend's, which has no futures
        return None
    finally:
        _asked.active, _asked.found = False, None  # nobody keeps it here


def _forward(name):
    theirs = getattr(dist.Work, name)

    def method(self, *arguments):
        found = _inside(self)
        return theirs(self, *arguments) if found is None else getattr(found, name)(*arguments)

    method.__name__, method.__doc__ = name, theirs.__doc__
    setattr(dist.Work, name, method)


def forward_to_python():
    """torch 2.15 wraps a Work of Python in one of C++ that forwards wait() and get_future() only. To all else it answers for itself:
    is_completed() is False for ever. These methods of torch's class look for the Work inside first."""
    for name in ("is_completed", "is_success", "exception", "result", "source_rank", "_source_rank", "synchronize"):
        _forward(name)
