"""Fan-out of a query's arms: a bounded pool of threads, the event loop, timeouts and the failure policy."""

from __future__ import annotations

import asyncio
import contextvars
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from hybridmem.errors import ArmError, ConfigError

__all__ = [
    "Job",
    "Latency",
    "OnError",
    "Outcome",
    "Steps",
    "adrive",
    "apply_policy",
    "arun",
    "check_policy",
    "drive",
    "in_thread",
    "one_job",
    "run",
    "run_one",
]

T = TypeVar("T")
OnError = Literal["raise", "skip"]
INLINE_BELOW = 0.0005
"""An arm that usually answers within so many seconds runs in the caller's thread: a handover would cost more."""
POOL_SIZE = 30
"""Threads for all fan-outs of this process."""
MAX_ABANDONED = 200
"""Further threads that may be busy with calls nobody waits for any more (after a timeout or another arm's failure)."""
IDLE_SECONDS = 5.0
"""How long an idle thread of the pool waits for work before it ends."""
HICCUP = 0.0001


class Latency:
    """How long an arm usually takes. Unknown arms count as slow; one slow call of a quick arm does not make it slow."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds

    def took(self, seconds: float) -> None:
        """Record a duration. It counts up to three times the usual one: a busy machine may delay a call."""
        seconds = min(seconds, max(3 * self.seconds, HICCUP))
        self.seconds = seconds if seconds > self.seconds else 0.2 * self.seconds + 0.8 * seconds


class Job(NamedTuple):
    """One arm to run. `run` uses `call`; `arun` awaits `acall`, or runs `call` in a thread where there is none."""

    name: str
    call: Callable[[], Any]
    acall: Callable[[], Awaitable[Any]] | None = None
    timeout: float | None = None
    latency: Latency | None = None


class Outcome(NamedTuple):
    """The value that a job returned, or the error that it raised."""

    name: str
    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0


def check_policy(on_error: str, timeout: float | None) -> None:
    """Validate a failure policy."""
    if on_error not in ("raise", "skip"):
        raise ConfigError(f"on_error = {on_error!r} is not allowed: 'raise' or 'skip'")
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < threading.TIMEOUT_MAX):
        raise ConfigError(f"timeout = {timeout!r} is not allowed: seconds above 0, or None")


# --- the pool


class _Task:
    """One call for the pool, in a copy of the submitter's context."""

    __slots__ = ("_call", "_context", "_done", "_started", "abandoned")

    def __init__(
        self,
        call: Callable[[], Any],
        done: Callable[[Any, BaseException | None], None],
        started: Callable[[], None] | None = None,
    ) -> None:
        self._call, self._done, self._started = call, done, started
        self._context = contextvars.copy_context()
        self.abandoned = False

    def run(self) -> None:
        """Run the call and report. Exits are reported too: in a pool thread they would leave the caller waiting."""
        if self._started is not None:
            self._started()
        try:
            value, error = self._context.run(self._call), None
        except BaseException as caught:  # noqa: BLE001
            value, error = None, caught
        self._done(value, error)


class _ThreadPool:
    """Daemon threads, at most `size` of them: a call that hangs does not keep the interpreter from exiting."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ready = threading.Condition(threading.Lock())
        self._pending: deque[_Task] = deque()
        self._running: set[_Task] = set()
        self._threads = self._idle = self._abandoned = 0
        self._local = threading.local()

    @property
    def is_worker(self) -> bool:
        """Whether the current thread belongs to the pool."""
        return getattr(self._local, "worker", False)

    def submit(self, task: _Task, /, *, beyond: bool = False) -> None:
        """Queue a task. `beyond` allows one thread more than the size: for a worker that must wait for the task."""
        with self._ready:
            self._pending.append(task)
            start = self._wants_thread(beyond=beyond)
            if not start:
                self._ready.notify()
        if start:
            self._start()

    def claim(self, task: _Task, /) -> bool:
        """Take a task back that no thread has started; True if the caller now has to run it."""
        with self._ready:
            if task not in self._pending:
                return False
            self._pending.remove(task)
            return True

    def abandon(self, task: _Task, /) -> None:
        """Stop waiting for a task: one in the queue is dropped, one that runs no longer takes up the pool's room."""
        start = False
        with self._ready:
            if task in self._pending:
                self._pending.remove(task)
            elif task in self._running and self._abandoned < MAX_ABANDONED:
                task.abandoned = True
                self._abandoned += 1
                self._threads -= 1
                start = bool(self._pending) and self._wants_thread()
        if start:
            self._start()

    def _wants_thread(self, *, beyond: bool = False) -> bool:
        if self._idle >= len(self._pending) or (self._threads >= self._size and not beyond):
            return False
        self._threads += 1
        return True

    def _start(self) -> None:
        threading.Thread(target=self._serve, name="hybridmem-pool", daemon=True).start()

    def _serve(self) -> None:
        self._local.worker = True
        while (task := self._next()) is not None:
            task.run()
            with self._ready:
                self._running.discard(task)
                if task.abandoned:
                    self._abandoned -= 1
                    return
                if self._threads > self._size:
                    self._threads -= 1
                    return
            del task

    def _next(self) -> _Task | None:
        with self._ready:
            self._idle += 1
            while not self._pending:
                if not self._ready.wait(IDLE_SECONDS) and not self._pending:
                    self._idle -= 1
                    self._threads -= 1
                    return None
            self._idle -= 1
            task = self._pending.popleft()
            self._running.add(task)
            return task


_pool = _ThreadPool(POOL_SIZE)


def _new_pool() -> None:
    global _pool  # noqa: PLW0603  threads do not survive a fork
    _pool = _ThreadPool(POOL_SIZE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_pool)


# --- sync code


def run(
    jobs: Sequence[Job],
    /,
    *,
    limit: int | None = None,
    inline_below: float = INLINE_BELOW,
    on_error: OnError = "skip",
) -> list[Outcome]:
    """Run all jobs at once and return their outcomes in order; at most `limit` of them at the same time.

    Quick arms (usually done within `inline_below` seconds) run in the caller's thread while the pool runs the others;
    `limit=1` runs all of them there, in order. Contexts are copied into threads, so that spans and parent runs are
    kept. A job that exceeds its timeout goes on unseen in its thread. With `on_error="raise"` the first failure ends
    the fan-out: the list then holds what was done so far, and `apply_policy` raises it.
    """
    unlimited = all(job.timeout is None for job in jobs)
    if unlimited and (limit == 1 or len(jobs) == 1):
        return _in_order(jobs, on_error)
    quick = [job.timeout is None and job.latency is not None and job.latency.seconds < inline_below for job in jobs]
    if all(quick):
        return _in_order(jobs, on_error)
    gathering = _Gathering(jobs, [i for i, fast in enumerate(quick) if not fast], limit)
    for i, fast in enumerate(quick):
        if fast:
            gathering.outcomes[i] = outcome = _timed(jobs[i])
            if outcome.error is not None and on_error == "raise":
                break
    else:
        gathering.wait(on_error)
    gathering.leave()
    return [outcome for _, outcome in sorted(gathering.outcomes.items())]


def _in_order(jobs: Sequence[Job], on_error: OnError) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for job in jobs:
        outcomes.append(_timed(job))
        if outcomes[-1].error is not None and on_error == "raise":
            break
    return outcomes


def _timed(job: Job) -> Outcome:
    start = time.perf_counter()
    try:
        value = job.call()
    except Exception as error:  # noqa: BLE001  the policy decides later
        return Outcome(job.name, error=error, seconds=time.perf_counter() - start)
    seconds = time.perf_counter() - start
    if job.latency is not None:
        job.latency.took(seconds)
    return Outcome(job.name, value, seconds=seconds)


class _Gathering:
    """Jobs in pool threads, `limit` of them at a time; a job's timeout runs from its own start."""

    def __init__(self, jobs: Sequence[Job], places: Sequence[int], limit: int | None) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self._jobs = jobs
        self._left = deque(places)
        self._limit = len(places) if limit is None else max(1, limit)
        self._events: queue.SimpleQueue[tuple[int, Outcome | None]] = queue.SimpleQueue()
        self._tasks: dict[int, _Task] = {}
        self._deadlines: dict[int, float] = {}
        self._fill()

    def _fill(self) -> None:
        while self._left and len(self._tasks) < self._limit:
            place = self._left.popleft()
            job = self._jobs[place]
            task = self._tasks[place] = self._task(place, job)
            _pool.submit(task, beyond=_pool.is_worker and job.timeout is not None)
        if _pool.is_worker:  # a worker runs its own waiting tasks, so that nested fan-outs cannot block each other
            for place, task in list(self._tasks.items()):
                if self._jobs[place].timeout is None and _pool.claim(task):
                    task.run()

    def _task(self, place: int, job: Job) -> _Task:
        events = self._events

        def done(value: Any, error: BaseException | None) -> None:
            events.put((place, value if error is None else Outcome(job.name, error=error)))

        def started() -> None:
            events.put((place, None))

        return _Task(lambda: _timed(job), done, None if job.timeout is None else started)

    def wait(self, on_error: OnError) -> None:
        """Collect the outcomes, until all are there or one has failed."""
        while self._tasks:
            first = min(self._deadlines, key=self._deadlines.__getitem__, default=-1)
            left = self._deadlines.get(first, math.inf) - time.perf_counter()
            try:
                place, outcome = self._events.get(timeout=None if left == math.inf else max(0.0, left))
            except queue.Empty:
                place, outcome = first, _too_late(self._jobs[first])
                _pool.abandon(self._tasks[first])
            if outcome is None:  # it has started
                self._deadlines[place] = time.perf_counter() + (self._jobs[place].timeout or math.inf)
                continue
            if self._tasks.pop(place, None) is None:  # it was given up before
                continue
            self._deadlines.pop(place, None)
            self.outcomes[place] = outcome
            if outcome.error is not None and on_error == "raise":
                return
            self._fill()

    def leave(self) -> None:
        """Give up what is still under way."""
        for task in self._tasks.values():
            _pool.abandon(task)


def _too_late(job: Job) -> Outcome:
    return Outcome(job.name, error=TimeoutError(f"timeout after {job.timeout:g} s"), seconds=job.timeout or 0.0)


# --- async code


async def arun(jobs: Sequence[Job], /, *, limit: int | None = None, on_error: OnError = "skip") -> list[Outcome]:
    """The same on the event loop, which is never blocked: async arms are awaited together, plain ones run in threads.

    With `on_error="raise"` the first failure cancels the others.
    """
    gate = asyncio.Semaphore(max(1, limit)) if limit is not None else None

    async def one(job: Job) -> Outcome:
        if gate is None:
            return await _atimed(job)
        async with gate:
            return await _atimed(job)

    tasks = [asyncio.ensure_future(one(job)) for job in jobs]
    pending = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if on_error == "raise" and any(task.result().error is not None for task in done):
                break
        return [task.result() for task in tasks if task.done()]
    finally:
        for task in pending:
            task.cancel()


async def _atimed(job: Job) -> Outcome:
    start = time.perf_counter()
    try:
        if job.acall is None:
            value = await in_thread(job.call, timeout=job.timeout)
        else:
            value = await asyncio.wait_for(job.acall(), job.timeout)
    except asyncio.TimeoutError as error:
        late = job.timeout is not None and time.perf_counter() - start >= job.timeout
        return _too_late(job) if late else Outcome(job.name, error=error, seconds=time.perf_counter() - start)
    except Exception as error:  # noqa: BLE001  the policy decides later
        return Outcome(job.name, error=error, seconds=time.perf_counter() - start)
    return Outcome(job.name, value, seconds=time.perf_counter() - start)


async def in_thread(call: Callable[[], T], /, *, timeout: float | None = None) -> T:
    """Run a blocking call in a thread of the pool, with this context, without blocking the loop.

    A hung call does not stop the interpreter from exiting. `timeout` counts from the call's start, not from when it
    was queued.
    """
    waiting = _Waiting[T](timeout)
    pool = _pool
    task = _Task(call, waiting.done, None if timeout is None else waiting.started)
    pool.submit(task, beyond=pool.is_worker)
    try:
        return await waiting.future
    except (asyncio.CancelledError, asyncio.TimeoutError):
        pool.abandon(task)
        raise


class _Waiting(Generic[T]):
    """A future of the running loop that a pool thread resolves."""

    def __init__(self, timeout: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self.future: asyncio.Future[T] = self._loop.create_future()

    def started(self) -> None:
        """Start the timeout."""
        self._later(lambda: self._loop.call_later(self._timeout or 0.0, self._resolve, None, asyncio.TimeoutError()))

    def done(self, value: Any, error: BaseException | None) -> None:
        """Pass on the value or the error of the call."""
        if isinstance(error, StopIteration):  # a future refuses to carry it
            error = RuntimeError(f"StopIteration: {error}")
        self._later(lambda: self._resolve(value, error))

    def _resolve(self, value: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(value)

    def _later(self, work: Callable[[], Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            return  # the loop was closed meanwhile: nobody waits any more


# --- steps: code that is the same in sync and async programs

Steps = Generator[Sequence[Job], list[Outcome], T]
"""A computation that yields jobs and receives their outcomes: sync and async code differ in the driver alone."""


def drive(steps: Steps[T], /, *, limit: int | None = None, on_error: OnError = "raise") -> T:
    """Run a computation, its jobs in threads where that pays."""
    try:
        jobs = next(steps)
        while True:
            jobs = steps.send(run(jobs, limit=limit, on_error=on_error))
    except StopIteration as done:
        value: T = done.value
        return value


async def adrive(steps: Steps[T], /, *, limit: int | None = None, on_error: OnError = "raise") -> T:
    """Run a computation on the event loop."""
    try:
        jobs = next(steps)
        while True:
            jobs = steps.send(await arun(jobs, limit=limit, on_error=on_error))
    except StopIteration as done:
        value: T = done.value
        return value


def one_job(job: Job, /) -> Steps[Any]:
    """Run one job and return its value; its error is raised as it is."""
    outcomes = yield [job]
    apply_policy(outcomes, wrap=False)
    return outcomes[0].value


# --- failures


def apply_policy(outcomes: Sequence[Outcome], /, *, on_error: OnError = "raise", wrap: bool = True) -> dict[str, str]:
    """Apply the failure policy: raise the first error, or return the reason for each skipped arm.

    Raising wraps the original in an `ArmError` that names the arm and keeps it as `__cause__`; `wrap=False` raises
    the original itself, as the drop-ins' originals do. A ConfigError is the caller's mistake: it is raised as it is.
    """
    failed = [(outcome.name, outcome.error) for outcome in outcomes if outcome.error is not None]
    for _, error in failed:
        if not isinstance(error, Exception) or isinstance(error, ConfigError):
            raise error  # an exit or an interrupt is no failure of an arm
    if failed and on_error == "raise":
        name, error = failed[0]
        if not wrap:
            raise error
        raise ArmError(f"arm {name!r} failed: {_reason(error)}", arm=name) from error
    return {name: _reason(error) for name, error in failed}


def run_one(job: Job, /) -> Any:
    """The value of one arm, run in the caller's thread; its failure is an `ArmError`."""
    outcome = _timed(job)
    apply_policy([outcome])
    return outcome.value


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and str(error).startswith("timeout after"):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
