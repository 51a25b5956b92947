"""The simulator on cases worked out by hand."""

from __future__ import annotations

import pytest

from fairseq_hybrid.planner.simulate import (
    WAITING,
    Await,
    Collective,
    Compute,
    Link,
    Post,
    Span,
    simulate,
)


def work(seconds: float, kind: str = "work") -> Compute:
    return Compute(kind, kind, seconds)


def test_one_worker_does_one_thing_after_the_other():
    timeline = simulate([[work(2), work(3, "more")]])
    assert timeline.seconds == 5
    assert timeline.spans == [Span(0, "work", "work", 0, 2), Span(0, "more", "more", 2, 5)]
    assert timeline.idle == 0
    assert timeline.spent(0, "more") == 3


def test_nothing_takes_no_time():
    timeline = simulate([[], [work(0)]])
    assert (timeline.seconds, timeline.idle, timeline.spans) == (0, 0, [])


def test_a_message_takes_its_latency_and_its_bytes():
    programs = [[work(1), Post("up", "a", 30)], [Await("a"), work(2)]]
    timeline = simulate(programs, Link(latency=0.5, bandwidth=10))
    assert timeline.seconds == pytest.approx(1 + 3 + 0.5 + 2)
    assert timeline.sent == [30, 0]
    assert timeline.spans[1][:3] == (1, WAITING, "wait")
    assert timeline.idle == pytest.approx(1 - 3 / (2 * 6.5))


def test_sending_and_computing_go_on_side_by_side():
    programs = [[Post("up", "a", 30), work(3)], [work(1), Await("a")]]
    assert simulate(programs, Link(bandwidth=10)).seconds == pytest.approx(3)


def test_messages_of_a_lane_queue_up_and_lanes_share_the_bandwidth():
    link = Link(latency=1, bandwidth=10)
    one_lane = [[Post("up", "a", 20), Post("up", "b", 20)], [Await("a"), work(0.5), Await("b")]]
    assert simulate(one_lane, link).seconds == pytest.approx(2 + 2 + 1)  # latencies overlap
    both = [[Post("up", "a", 20), Post("down", "b", 10)], [Await("b"), work(0.25), Await("a")]]
    # half the bandwidth each: b has gone after 2 s, a has 10 bytes left then, at full speed
    timeline = simulate(both, link)
    assert timeline.seconds == pytest.approx(2 + 1 + 1)
    assert timeline.spans[0].end == pytest.approx(3)


def test_two_senders_do_not_share():
    programs = [[Post("x", "a", 20)], [Post("x", "b", 20)], [Await("a"), Await("b")]]
    assert simulate(programs, Link(bandwidth=10)).seconds == pytest.approx(2)


def test_a_meeting_waits_for_all_and_counts_what_is_sent():
    meet = Collective("sum", (0, 1), seconds=2, size=7)
    timeline = simulate([[work(1), meet, work(1)], [work(4), meet], [work(3)]])
    assert timeline.seconds == 4 + 2 + 1
    assert timeline.sent == [7, 7, 0]
    assert timeline.spent(0, WAITING) == 5
    assert timeline.spent(1, WAITING) == 2


def test_workers_slow_each_other_down_while_both_compute():
    def slow_down(kind: str, busy: int) -> float:
        return 2.0 if kind == "memory" and busy > 1 else 1.0

    # 2 s at half speed, in which worker 0 gets 1 s done, then 1 s alone
    timeline = simulate([[work(2, "memory")], [work(2)]], slow_down=slow_down)
    assert [span.end for span in timeline.spans] == pytest.approx([2, 3])


def test_a_wait_for_each_other_is_an_error():
    with pytest.raises(RuntimeError, match=r"workers \[0, 1\] wait for each other"):
        simulate([[Await("b"), Post("x", "a", 1)], [Await("a"), Post("x", "b", 1)]])


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("units", [1, 4])
def test_a_pipeline_fills_once(stages, units):
    """units + stages - 1 times the time of a unit, and of a message between stages."""
    programs = [
        [
            step
            for unit in range(units)
            for step in (
                *([Await((stage - 1, unit))] if stage else []),
                work(2),
                Post("up", (stage, unit), 5),
            )
        ]
        for stage in range(stages)
    ]
    timeline = simulate(programs, Link(latency=0.25, bandwidth=10))
    assert timeline.seconds == pytest.approx(2 * (units + stages - 1) + 0.75 * (stages - 1))
