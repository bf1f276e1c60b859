"""Fan-out: running the arms of a query concurrently, in threads or on the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import math
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from hybridmem.errors import ArmError, ConfigError

__all__ = [
    "Job",
    "Latency",
    "OnError",
    "Outcome",
    "apply_policy",
    "arun",
    "check_policy",
    "in_thread",
    "run",
    "run_one",
]

OnError = Literal["raise", "skip"]
INLINE_BELOW = 0.0003
"""Seconds: an arm that is usually faster than this runs in the caller's thread; a thread would cost more."""


class Latency:
    """Running estimate of an arm's duration in seconds. An arm that was never measured counts as slow (1 s)."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 1.0

    def took(self, seconds: float) -> None:
        """Update the estimate: a slower call replaces it at once, a faster one moves it by 80 %."""
        self.seconds = seconds if seconds > self.seconds else 0.2 * self.seconds + 0.8 * seconds


class Job(NamedTuple):
    """One arm to run: a plain callable for `run`; for `arun` a plain callable or an async one (`is_async`)."""

    name: str
    call: Callable[[], Any]
    timeout: float | None = None
    latency: Latency | None = None
    is_async: bool = False


class Outcome(NamedTuple):
    """Result of a job: its value or its error, and its duration."""

    name: str
    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0


def check_policy(on_error: str, timeout: float | None) -> None:
    """Raise ConfigError for an unknown failure policy or an invalid timeout."""
    if on_error not in ("raise", "skip"):
        raise ConfigError(f"on_error = {on_error!r} is not allowed: 'raise' or 'skip'")
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < threading.TIMEOUT_MAX):
        raise ConfigError(f"timeout = {timeout!r} is not allowed: seconds above 0, or None")


def run(jobs: Sequence[Job], /, *, limit: int | None = None, inline_below: float = INLINE_BELOW) -> list[Outcome]:
    """Run all jobs concurrently and return their outcomes in order; at most `limit` of them at the same time.

    Arms that usually finish within `inline_below` seconds run in the caller's thread, and so does one slow arm,
    because the caller would only wait. Context variables are copied into threads, so that spans and parent runs are
    kept. A job that exceeds its timeout keeps running in its thread; its result is ignored.
    """
    quick = [_quick(job, inline_below) for job in jobs]
    if all(quick):
        return [_timed(job) for job in jobs]
    outcomes: list[Outcome | None] = [None] * len(jobs)
    inline = [i for i, fast in enumerate(quick) if fast]
    slow = [i for i, fast in enumerate(quick) if not fast]
    if slow and limit is None and jobs[slow[-1]].timeout is None:
        inline.append(slow.pop())
    group = _ThreadGroup([jobs[i] for i in slow], limit)
    for i in inline:
        outcomes[i] = _timed(jobs[i])
    for i, outcome in zip(slow, group.wait(), strict=True):
        outcomes[i] = outcome
    return [outcome for outcome in outcomes if outcome is not None]


def _quick(job: Job, below: float) -> bool:
    return job.timeout is None and job.latency is not None and job.latency.seconds < below


def _timed(job: Job) -> Outcome:
    start = time.perf_counter()
    try:
        value = job.call()
    except Exception as error:  # noqa: BLE001 - apply_policy() decides later
        return Outcome(job.name, error=error, seconds=time.perf_counter() - start)
    seconds = time.perf_counter() - start
    if job.latency is not None:
        job.latency.took(seconds)
    return Outcome(job.name, value, seconds=seconds)


class _ThreadGroup:
    """Jobs in daemon threads, at most `limit` at a time; a job's timeout starts when the job starts."""

    def __init__(self, jobs: Sequence[Job], limit: int | None) -> None:
        self._jobs = jobs
        self._limit = len(jobs) if limit is None else max(1, limit)
        self._done: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._deadlines: dict[int, float] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._fill()

    def _fill(self) -> None:
        """Start jobs while fewer than `limit` run; a job that timed out no longer counts."""
        for place in range(len(self._deadlines) + len(self._outcomes), len(self._jobs)):
            if len(self._deadlines) >= self._limit:
                return
            job, context = self._jobs[place], contextvars.copy_context()
            self._deadlines[place] = math.inf if job.timeout is None else time.perf_counter() + job.timeout
            work = partial(self._work, place, job, context)
            threading.Thread(target=work, name=f"hybridmem-{job.name}", daemon=True).start()

    def _work(self, place: int, job: Job, context: contextvars.Context) -> None:
        self._done.put((place, context.run(_caught, job)))

    def wait(self) -> list[Outcome]:
        """Return all outcomes, in the order of the jobs."""
        while self._deadlines:
            first = min(self._deadlines, key=self._deadlines.__getitem__)
            left = self._deadlines[first] - time.perf_counter()
            try:
                place, outcome = self._done.get(timeout=None if left == math.inf else max(0.0, left))
            except queue.Empty:
                place, outcome = first, _timed_out(self._jobs[first])
            if self._deadlines.pop(place, None) is not None:  # None: it had already timed out
                self._outcomes[place] = outcome
                self._fill()
        return [self._outcomes[place] for place in range(len(self._jobs))]


def _caught(job: Job) -> Outcome:
    """Like `_timed`, but also returns SystemExit and KeyboardInterrupt, so that the caller never waits for ever."""
    try:
        return _timed(job)
    except BaseException as error:  # noqa: BLE001
        return Outcome(job.name, error=error)


def _timed_out(job: Job) -> Outcome:
    return Outcome(job.name, error=TimeoutError(f"timeout after {job.timeout:g} s"), seconds=job.timeout or 0.0)


async def arun(jobs: Sequence[Job], /, *, limit: int | None = None) -> list[Outcome]:
    """`run` on the event loop: async arms are awaited together, plain ones run in threads."""
    gate = asyncio.Semaphore(max(1, limit)) if limit is not None else None

    async def one(job: Job) -> Outcome:
        if gate is None:
            return await _atimed(job)
        async with gate:
            return await _atimed(job)

    return list(await asyncio.gather(*(one(job) for job in jobs)))


async def _atimed(job: Job) -> Outcome:
    start = time.perf_counter()
    work: Awaitable[Any] = job.call() if job.is_async else in_thread(job.call)
    try:
        value = await asyncio.wait_for(work, job.timeout)
    except asyncio.TimeoutError as error:
        late = job.timeout is not None and time.perf_counter() - start >= job.timeout
        return _timed_out(job) if late else Outcome(job.name, error=error, seconds=time.perf_counter() - start)
    except Exception as error:  # noqa: BLE001 - apply_policy() decides later
        return Outcome(job.name, error=error, seconds=time.perf_counter() - start)
    return Outcome(job.name, value, seconds=time.perf_counter() - start)


async def in_thread(call: Callable[[], Any], /) -> Any:
    """Run a blocking call in a new daemon thread with the current context variables, and await its result.

    Unlike `asyncio.to_thread` it never queues behind other blocked calls, and a hung call does not stop the
    interpreter from exiting.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(value: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(call)
        except BaseException as caught:  # noqa: BLE001 - raised again by `await`
            error = caught
            if isinstance(caught, StopIteration):  # a Future cannot hold it
                error = RuntimeError(f"StopIteration: {caught}")
        try:
            loop.call_soon_threadsafe(deliver, value, error)
        except RuntimeError:
            return  # the loop was closed meanwhile

    threading.Thread(target=work, name="hybridmem-async", daemon=True).start()
    return await done


def apply_policy(outcomes: Sequence[Outcome], /, *, on_error: OnError = "raise", wrap: bool = True) -> dict[str, str]:
    """Apply the failure policy: raise the first error, or return the reason for each skipped arm.

    Raising wraps the original in an `ArmError` that names the arm and keeps it as `__cause__`; `wrap=False` raises
    the original itself, as EnsembleRetriever and QueryFusionRetriever do.
    """
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        if isinstance(outcome.error, BaseException) and not isinstance(outcome.error, Exception):
            raise outcome.error  # SystemExit, KeyboardInterrupt: never skipped
    if failed and on_error == "raise":
        first = failed[0]
        error: BaseException = first.error or RuntimeError(first.name)
        if not wrap:
            raise error
        raise ArmError(f"arm {first.name!r} failed: {_reason(error)}", arm=first.name) from error
    return {outcome.name: _reason(outcome.error) for outcome in failed if outcome.error is not None}


def run_one(job: Job, /) -> Any:
    """Run one arm in the caller's thread and return its value; a failure raises ArmError."""
    outcome = _timed(job)
    apply_policy([outcome])
    return outcome.value


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and str(error).startswith("timeout after"):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
