import asyncio
import contextvars
import math
import threading
import time

import pytest

from hybridmem.core import fanout
from hybridmem.core.fanout import (
    POOL_SIZE,
    Job,
    Latency,
    Outcome,
    adrive,
    apply_policy,
    arun,
    check_policy,
    drive,
    in_thread,
    one_job,
    run,
    run_one,
)
from hybridmem.errors import ArmError, ConfigError

WHO = contextvars.ContextVar("who", default="nobody")


def fail():
    raise LookupError("gone")


async def afail():
    raise LookupError("gone")


def test_arms_run_at_the_same_time():
    together = threading.Barrier(3, timeout=30)
    outcomes = run([Job(name, together.wait) for name in "abc"])
    assert sorted(outcome.value for outcome in outcomes) == [0, 1, 2]
    assert [outcome.name for outcome in outcomes] == ["a", "b", "c"]


async def test_plain_and_async_arms_run_at_the_same_time_on_the_loop():
    together = threading.Barrier(2, timeout=30)
    met = asyncio.Event()

    async def waits():
        met.set()
        await asyncio.sleep(0)
        return "async"

    outcomes = await arun([Job("a", together.wait), Job("b", together.wait), Job("c", fail, waits)])
    assert met.is_set()
    assert outcomes[2].value == "async"
    assert {outcomes[0].value, outcomes[1].value} == {0, 1}


async def test_the_loop_goes_on_while_an_arm_blocks():
    release = threading.Event()

    async def tick():
        for _ in range(5):
            await asyncio.sleep(0.001)
        release.set()

    outcomes, _ = await asyncio.gather(arun([Job("slow", lambda: release.wait(30))]), tick())
    assert outcomes[0].value is True


def test_a_limit_is_kept():
    running, most, lock = 0, 0, threading.Lock()

    def work():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1

    run([Job(str(i), work) for i in range(6)], limit=2)
    assert most <= 2
    asyncio.run(arun([Job(str(i), work) for i in range(6)], limit=1))
    assert most <= 2


def test_errors_are_outcomes_and_the_policy_decides():
    outcomes = run([Job("ok", lambda: 1), Job("bad", fail)])
    assert apply_policy(outcomes, on_error="skip") == {"bad": "LookupError: gone"}
    with pytest.raises(ArmError, match="arm 'bad' failed: LookupError: gone") as caught:
        apply_policy(outcomes)
    assert caught.value.arm == "bad"
    assert isinstance(caught.value.__cause__, LookupError)
    with pytest.raises(LookupError, match="gone"):
        apply_policy(outcomes, wrap=False)
    assert apply_policy([Outcome("x", 1)]) == {}
    assert apply_policy([Outcome("x", error=ValueError())], on_error="skip") == {"x": "ValueError"}


async def test_errors_on_the_loop():
    outcomes = await arun([Job("a", fail), Job("b", fail, afail)])
    assert [type(outcome.error) for outcome in outcomes] == [LookupError, LookupError]


def test_one_arm_alone():
    assert run_one(Job("ok", lambda: 1)) == 1
    with pytest.raises(ArmError, match="arm 'bad' failed: LookupError: gone"):
        run_one(Job("bad", fail))


def test_a_timeout_is_reported_with_its_seconds():
    never = threading.Event()
    outcomes = run([Job("slow", lambda: never.wait(30), timeout=0.02), Job("ok", lambda: 1, timeout=30.0)])
    never.set()
    assert apply_policy(outcomes, on_error="skip") == {"slow": "timeout after 0.02 s"}
    assert outcomes[1].value == 1


@pytest.mark.parametrize("later", [False, True])
def test_the_time_of_an_arm_runs_from_its_own_start(later):
    hung, turns = threading.Event(), []

    def work(name):
        turns.append(name)
        return name

    jobs = [
        Job("hung", lambda: hung.wait(30), timeout=0.3),
        Job("next", lambda: work("next"), timeout=0.2),
        Job("last", lambda: work("last")),
    ]
    outcomes = asyncio.run(arun(jobs, limit=1)) if later else run(jobs, limit=1)
    hung.set()
    assert turns == ["next", "last"]  # who is left behind makes room
    assert apply_policy(outcomes, on_error="skip") == {"hung": "timeout after 0.3 s"}
    assert [outcome.value for outcome in outcomes] == [None, "next", "last"]


def test_an_answer_that_comes_after_its_time_is_dropped():
    first, second = threading.Event(), threading.Event()

    def late():
        first.wait(30)
        return "late"

    def slow():
        first.set()
        second.wait(0.05)
        return "slow"

    outcomes = run([Job("late", late, timeout=0.02), Job("slow", slow, timeout=30.0)], limit=1)
    assert apply_policy(outcomes, on_error="skip") == {"late": "timeout after 0.02 s"}
    assert [outcome.value for outcome in outcomes] == [None, "slow"]


async def test_a_timeout_on_the_loop():
    never = threading.Event()

    async def asleep():
        await asyncio.sleep(30)

    async def own():
        raise asyncio.TimeoutError("its own")

    jobs = [
        Job("thread", lambda: never.wait(30), timeout=0.02),
        Job("task", fail, asleep, timeout=0.02),
        Job("own", fail, own),
    ]
    outcomes = await arun(jobs)
    never.set()
    assert apply_policy(outcomes, on_error="skip") == {
        "thread": "timeout after 0.02 s",
        "task": "timeout after 0.02 s",
        "own": "TimeoutError: its own",
    }


def test_contexts_reach_the_threads():
    WHO.set("me")
    outcomes = run([Job("a", WHO.get), Job("b", WHO.get), Job("c", WHO.get, timeout=30.0)])
    assert [outcome.value for outcome in outcomes] == ["me", "me", "me"]
    assert run([Job("a", WHO.get)], limit=1)[0].value == "me"


def test_quick_arms_run_in_the_callers_thread():
    latency = Latency()
    here = threading.get_ident()
    jobs = [Job("quick", threading.get_ident, latency=latency), Job("other", threading.get_ident)]
    for _ in range(20):
        latency.took(0.0)
    assert run(jobs)[0].value == here
    assert [outcome.value for outcome in run([jobs[0], jobs[0]])] == [here, here]
    latency.took(0.5)
    assert run(jobs)[0].value == here  # one slow call may be the machine's fault
    latency.seconds = 0.4
    latency.took(0.5)
    assert latency.seconds == 0.5
    assert run(jobs)[0].value != here


def test_an_arm_that_fails_keeps_its_pace():
    latency = Latency()
    run([Job("bad", fail, latency=latency)])
    assert latency.seconds == 1.0


async def test_in_thread_hands_over_values_and_errors():
    assert await in_thread(lambda: 7) == 7
    with pytest.raises(LookupError):
        await in_thread(fail)

    def stop():
        raise StopIteration("end")

    with pytest.raises(RuntimeError, match="StopIteration: end"):
        await in_thread(stop)


def test_a_result_that_comes_after_the_loop_closed_is_dropped():
    release, started, done = threading.Event(), threading.Event(), threading.Event()

    def slow():
        started.set()
        release.wait(30)
        done.set()

    async def leave():
        task = asyncio.ensure_future(in_thread(slow))
        while not started.is_set():  # noqa: ASYNC110  a thread sets it
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(leave())
    release.set()
    assert done.wait(30)
    time.sleep(0.05)


async def test_a_result_for_a_cancelled_wait_is_dropped():
    release = threading.Event()
    task = asyncio.ensure_future(in_thread(lambda: release.wait(30)))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    release.set()
    await asyncio.sleep(0.05)
    assert task.cancelled()


@pytest.mark.parametrize(
    ("on_error", "timeout"),
    [("ignore", None), ("raise", 0), ("skip", -1.0), ("skip", "2"), ("skip", math.inf), ("skip", math.nan)],
)
def test_bad_policies_are_refused(on_error, timeout):
    with pytest.raises(ConfigError, match="not allowed"):
        check_policy(on_error, timeout)


def test_good_policies_pass():
    assert check_policy("raise", None) is None
    assert check_policy("skip", 2.0) is None


def leave():
    raise SystemExit(3)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_exit_in_a_thread_reaches_the_caller_instead_of_hanging_it(on_error):
    outcomes = run([Job("a", leave, timeout=30.0), Job("b", leave, timeout=30.0)])
    with pytest.raises(SystemExit):
        apply_policy(outcomes, on_error=on_error)


def test_an_exit_of_a_plain_arm_on_the_loop_reaches_the_caller():
    async def ask():
        return await in_thread(leave)

    with pytest.raises(SystemExit):
        asyncio.run(ask())


def test_a_limit_of_one_runs_every_arm_in_the_callers_thread_in_order():
    turns = []
    jobs = [Job(name, lambda name=name: turns.append((name, threading.get_ident()))) for name in "abc"]
    run(jobs, limit=1)
    assert turns == [(name, threading.get_ident()) for name in "abc"]


@pytest.mark.parametrize("later", [False, True])
def test_the_first_failure_ends_the_fan_out(later):
    hung = threading.Event()
    jobs = [Job("slow", lambda: hung.wait(30)), Job("bad", fail), Job("slower", lambda: hung.wait(30))]
    start = time.perf_counter()
    outcomes = asyncio.run(arun(jobs, on_error="raise")) if later else run(jobs, on_error="raise")
    taken = time.perf_counter() - start
    hung.set()
    assert taken < 5
    with pytest.raises(ArmError, match="arm 'bad' failed"):
        apply_policy(outcomes)


def pool_threads():
    return sum(thread.name == "hybridmem-pool" for thread in threading.enumerate())


async def test_a_thousand_blocking_calls_share_a_bounded_pool():
    most = 0

    def work():
        nonlocal most
        most = max(most, pool_threads())
        time.sleep(0.001)
        return 1

    values = await asyncio.gather(*(in_thread(work) for _ in range(1000)))
    assert sum(values) == 1000
    assert 1 < most <= POOL_SIZE + 5  # plus threads that earlier tests left behind


async def test_nested_fan_outs_in_a_full_pool_do_not_block_each_other():
    def inner():
        return sum(outcome.value for outcome in run([Job(str(i), lambda: time.sleep(0.002) or 1) for i in range(3)]))

    def outer():
        return sum(outcome.value for outcome in run([Job("a", inner), Job("b", inner)]))

    values = await asyncio.wait_for(asyncio.gather(*(in_thread(outer) for _ in range(3 * POOL_SIZE))), 30)
    assert values == [6] * (3 * POOL_SIZE)


def test_calls_that_hang_do_not_use_up_the_pool():
    hung = threading.Event()
    for _ in range(3):
        run([Job(str(i), lambda: hung.wait(30), timeout=0.01) for i in range(20)])
    outcomes = run([Job("a", lambda: 1), Job("b", lambda: 2)])
    hung.set()
    assert [outcome.value for outcome in outcomes] == [1, 2]


def double(n):
    first = yield [Job("a", lambda: n + 1)]
    second = yield [Job("b", lambda: first[0].value * 2)]
    return second[0].value


def test_steps_are_the_same_in_sync_and_async_code():
    assert drive(double(3)) == (3 + 1) * 2
    assert asyncio.run(adrive(double(3))) == (3 + 1) * 2


def test_one_job_is_a_computation_that_raises_its_error_as_it_is():
    assert drive(one_job(Job("ok", lambda: 1))) == 1
    with pytest.raises(LookupError, match="gone"):
        drive(one_job(Job("bad", fail)))


# --- the pool by itself


def task(call, done):
    return fanout._Task(call, lambda value, error: done.append((value, error)))


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_an_abandoned_task_gives_its_place_to_the_next_one():
    pool, release, done = fanout._ThreadPool(1), threading.Event(), []
    hangs, waits, never = (task(call, done) for call in (release.wait, lambda: "next", lambda: "never"))
    pool.submit(hangs)
    until(lambda: hangs in pool._running)
    pool.submit(waits)
    pool.submit(never)
    pool.abandon(never)  # still in the queue: it never runs
    pool.abandon(hangs)
    until(lambda: done == [("next", None)])
    pool.abandon(waits)  # done already: nothing to give up
    release.set()
    until(lambda: pool._abandoned == 0)
    assert done == [("next", None), (True, None)]


def test_a_thread_without_work_ends(monkeypatch):
    monkeypatch.setattr(fanout, "IDLE_SECONDS", 0.01)
    pool, done = fanout._ThreadPool(2), []
    pool.submit(task(lambda: "a", done))
    until(lambda: done and pool._threads == 0)
    pool.submit(task(lambda: "b", done))
    until(lambda: len(done) == 2)


def test_a_thread_beyond_the_size_ends_after_its_task():
    pool, release, done = fanout._ThreadPool(1), threading.Event(), []
    pool.submit(task(release.wait, done))
    until(lambda: pool._running)
    pool.submit(task(lambda: "beyond", done), beyond=True)
    until(lambda: done == [("beyond", None)])
    until(lambda: pool._threads == 1)
    release.set()


def test_a_forked_child_has_a_pool_of_its_own(monkeypatch):
    before = fanout._pool
    monkeypatch.setattr(fanout, "_pool", before)
    fanout._new_pool()
    assert fanout._pool is not before
    assert [outcome.value for outcome in run([Job("a", lambda: 1), Job("b", lambda: 2)])] == [1, 2]


def test_the_first_failure_ends_jobs_that_run_in_order():
    ran = []
    jobs = [Job("a", fail), Job("b", lambda: ran.append("b"))]
    assert [outcome.name for outcome in run(jobs, limit=1, on_error="raise")] == ["a"]
    assert ran == []


def test_the_first_failure_of_a_quick_arm_ends_the_fan_out():
    latency, release = Latency(), threading.Event()
    latency.took(0.0)
    jobs = [Job("quick", fail, latency=latency), Job("slow", lambda: release.wait(20))]
    outcomes = run(jobs, inline_below=math.inf, on_error="raise")
    release.set()
    assert [outcome.name for outcome in outcomes] == ["quick"]
    with pytest.raises(ArmError, match="gone"):
        apply_policy(outcomes)
