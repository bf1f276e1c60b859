"""Fan-out: run the arms of a query at the same time, in threads or on the event loop. The only I/O of a query."""

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

__all__ = ["Job", "OnError", "Outcome", "Pace", "arun", "check_policy", "in_thread", "only", "run", "settle"]

OnError = Literal["raise", "skip"]
INLINE_BELOW = 0.0003
"""An arm that answers faster than a thread starts is run on the spot."""


class Pace:
    """How long an arm usually takes, so that in-process arms need no thread. Unknown arms count as slow."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 1.0

    def took(self, seconds: float) -> None:
        """Remember a duration: believe a slow call at once, a fast one once it has lasted."""
        self.seconds = seconds if seconds > self.seconds else 0.2 * self.seconds + 0.8 * seconds


class Job(NamedTuple):
    """One arm to run: a plain callable for `run`; for `arun` a plain callable or an async one (`is_async`)."""

    name: str
    call: Callable[[], Any]
    timeout: float | None = None
    pace: Pace | None = None
    is_async: bool = False


class Outcome(NamedTuple):
    """What became of a job: its value, or its error."""

    name: str
    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0


def check_policy(on_error: str, timeout: float | None) -> None:
    """Refuse a failure policy that does not exist."""
    if on_error not in ("raise", "skip"):
        raise ConfigError(f"on_error = {on_error!r} is not allowed: 'raise' or 'skip'")
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < threading.TIMEOUT_MAX):
        raise ConfigError(f"timeout = {timeout!r} is not allowed: seconds above 0, or None")


def run(jobs: Sequence[Job], /, *, limit: int | None = None, inline_below: float = INLINE_BELOW) -> list[Outcome]:
    """Run all jobs at once and give their outcomes in order; at most `limit` of them at the same time.

    Quick arms (usually done within `inline_below` seconds) run inline, and so does one slow arm: the caller's thread
    would only wait. Contexts are copied into threads, so that spans and parent runs are kept. A job that outlives
    its timeout is left behind in its thread.
    """
    quick = [_quick(job, inline_below) for job in jobs]
    if all(quick):
        return [_timed(job) for job in jobs]
    outcomes: list[Outcome | None] = [None] * len(jobs)
    inline = [i for i, fast in enumerate(quick) if fast]
    slow = [i for i, fast in enumerate(quick) if not fast]
    if slow and limit is None and jobs[slow[-1]].timeout is None:
        inline.append(slow.pop())
    crew = _Crew([jobs[i] for i in slow], limit)
    for i in inline:
        outcomes[i] = _timed(jobs[i])
    for i, outcome in zip(slow, crew.wait(), strict=True):
        outcomes[i] = outcome
    return [outcome for outcome in outcomes if outcome is not None]


def _quick(job: Job, below: float) -> bool:
    return job.timeout is None and job.pace is not None and job.pace.seconds < below


def _timed(job: Job) -> Outcome:
    start = time.perf_counter()
    try:
        value = job.call()
    except Exception as error:  # noqa: BLE001  the policy decides later
        return Outcome(job.name, error=error, seconds=time.perf_counter() - start)
    seconds = time.perf_counter() - start
    if job.pace is not None:
        job.pace.took(seconds)
    return Outcome(job.name, value, seconds=seconds)


class _Crew:
    """Jobs in daemon threads, `limit` of them at a time; a job's time runs from its own start, not while it queues."""

    def __init__(self, jobs: Sequence[Job], limit: int | None) -> None:
        self._jobs = jobs
        self._limit = len(jobs) if limit is None else max(1, limit)
        self._done: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._deadlines: dict[int, float] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._fill()

    def _fill(self) -> None:
        """Start jobs while there is room; one that was left behind has made room."""
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
        """All outcomes, in the order of the jobs."""
        while self._deadlines:
            first = min(self._deadlines, key=self._deadlines.__getitem__)
            left = self._deadlines[first] - time.perf_counter()
            try:
                place, outcome = self._done.get(timeout=None if left == math.inf else max(0.0, left))
            except queue.Empty:
                place, outcome = first, _too_late(self._jobs[first])
            if self._deadlines.pop(place, None) is not None:  # else it comes too late
                self._outcomes[place] = outcome
                self._fill()
        return [self._outcomes[place] for place in range(len(self._jobs))]


def _caught(job: Job) -> Outcome:
    """Also an exit is carried over to the caller: in a thread it would only leave the caller waiting for ever."""
    try:
        return _timed(job)
    except BaseException as error:  # noqa: BLE001
        return Outcome(job.name, error=error)


def _too_late(job: Job) -> Outcome:
    return Outcome(job.name, error=TimeoutError(f"timeout after {job.timeout:g} s"), seconds=job.timeout or 0.0)


async def arun(jobs: Sequence[Job], /, *, limit: int | None = None) -> list[Outcome]:
    """The same on the event loop: async arms are awaited together, plain ones run in threads, the loop never waits."""
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
        return _too_late(job) if late else Outcome(job.name, error=error, seconds=time.perf_counter() - start)
    except Exception as error:  # noqa: BLE001  the policy decides later
        return Outcome(job.name, error=error, seconds=time.perf_counter() - start)
    return Outcome(job.name, value, seconds=time.perf_counter() - start)


async def in_thread(call: Callable[[], Any], /) -> Any:
    """Run a blocking call in a thread of its own, with this context, without holding up the loop.

    Unlike `asyncio.to_thread` it never queues behind other blocked calls, and a hung call does not stop the
    interpreter from exiting.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def tell(value: Any, error: BaseException | None) -> None:
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
        except BaseException as caught:  # noqa: BLE001  handed over to whoever awaits
            error = caught
            if isinstance(caught, StopIteration):  # a future refuses to carry it
                error = RuntimeError(f"StopIteration: {caught}")
        try:
            loop.call_soon_threadsafe(tell, value, error)
        except RuntimeError:
            return  # the loop was closed meanwhile: nobody waits any more

    threading.Thread(target=work, name="hybridmem-async", daemon=True).start()
    return await done


def settle(outcomes: Sequence[Outcome], /, *, on_error: OnError = "raise", wrap: bool = True) -> dict[str, str]:
    """Apply the failure policy: raise the first error, or give the reason for each skipped arm.

    Raising wraps the original in an `ArmError` that names the arm and keeps it as `__cause__`; `wrap=False` raises
    the original itself, as the drop-ins' originals do.
    """
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        if isinstance(outcome.error, BaseException) and not isinstance(outcome.error, Exception):
            raise outcome.error  # an exit or an interrupt is no failure of an arm
    if failed and on_error == "raise":
        first = failed[0]
        error: BaseException = first.error or RuntimeError(first.name)
        if not wrap:
            raise error
        raise ArmError(f"arm {first.name!r} failed: {_reason(error)}", arm=first.name) from error
    return {outcome.name: _reason(outcome.error) for outcome in failed if outcome.error is not None}


def only(job: Job, /) -> Any:
    """The value of one arm, run on the spot; its failure is an `ArmError`."""
    outcome = _timed(job)
    settle([outcome])
    return outcome.value


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and str(error).startswith("timeout after"):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
