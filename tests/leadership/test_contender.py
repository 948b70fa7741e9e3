"""The state machine, step by step: what it does with each event at each instant."""

from __future__ import annotations

from itertools import pairwise

import pytest

from threadmill_sa.engine.leadership.contender import (
    Action,
    Began,
    Call,
    CallKind,
    Contender,
    Ended,
    Extended,
    Reply,
    Saw,
    Stopped,
)
from threadmill_sa.engine.leadership.timings import Timings
from threadmill_sa.model.lease import (
    AcquireAnswer,
    AcquireVerdict,
    Lease,
    LossReason,
    ReleaseVerdict,
    RenewVerdict,
)

T = Timings(ttl=15.0)  # renewed every 5 s, trusted for 13.5 s, a call may take 2.5 s
TRUST, PATIENCE = 13.5, 2.5
ME = "me"


def won(term: int = 1) -> AcquireAnswer:
    return AcquireAnswer(AcquireVerdict.ACQUIRED, Lease("settle", ME, term), 15.0)


def held(by: str = "other", term: int = 1, remaining: float = 10.0) -> AcquireAnswer:
    return AcquireAnswer(AcquireVerdict.HELD, Lease("settle", by, term), remaining)


class Play:
    """A contender, the instant, and what it asked for."""

    def __init__(self) -> None:
        self.now = 100.0
        self.contender = Contender(ME, T, lambda: 0.0)
        self.told: list[Action] = []
        self.calls: list[Call] = []
        self._take(self.contender.start(self.now))

    def _take(self, actions: list[Action]) -> None:
        self.calls += [each for each in actions if isinstance(each, Call)]
        self.told += [each for each in actions if not isinstance(each, Call)]

    def at(self, now: float) -> Play:
        """Let the time come, with every instant at which the contender wakes on the way."""
        while self.contender.wake_at <= now:
            self.now = max(self.now, self.contender.wake_at)
            self._take(self.contender.pass_time(self.now))
        self.now = now
        return self

    def reply(self, reply: Reply, call: Call | None = None) -> Play:
        self._take(self.contender.reply(call or self.calls[-1], reply, self.now))
        return self

    def do(self, act: str, *args: object, **options: object) -> Play:
        self._take(getattr(self.contender, act)(*args, self.now, **options))
        return self

    @property
    def kinds(self) -> list[str]:
        return [call.kind.value for call in self.calls]

    @property
    def news(self) -> list[Action]:
        """What was told since the last look."""
        told, self.told = self.told, []
        return told


def leading() -> Play:
    play = Play().reply(won())
    assert play.news == [Began(1, 100.0 + TRUST)]
    return play


def test_the_first_attempt_is_made_at_once() -> None:
    play = Play()

    assert play.kinds == ["acquire"]
    assert play.contender.wake_at == 100.0 + PATIENCE


def test_trust_is_counted_from_the_start_of_the_call() -> None:
    play = Play().at(102.0).reply(won())
    assert play.news == [Began(1, 100.0 + TRUST)]

    play.at(105.0).at(107.0).reply(RenewVerdict.RENEWED)

    assert play.news == [Extended(1, 105.0 + TRUST)]


def test_a_renewal_is_asked_for_after_a_third_and_again_and_again() -> None:
    play = leading()
    for start in (105.0, 110.0, 115.0, 120.0):
        play.at(start).reply(RenewVerdict.RENEWED)

    assert play.kinds == ["acquire", *["renew"] * 4]
    assert play.news[-1] == Extended(1, 120.0 + TRUST)


def test_a_failed_renewal_is_tried_again_and_costs_nothing() -> None:
    play = leading().at(105.0).reply(None).at(105.2).reply(None).at(106.0)

    play.reply(RenewVerdict.RENEWED)

    assert play.news == [Extended(1, play.calls[-1].sent_at + TRUST)]
    assert play.calls[-1].sent_at < 106.0


def test_a_burst_of_errors_within_the_bound_never_loses_leadership() -> None:
    for began in range(50):
        play = leading()
        starts, ends = 105.0 + began / 10, 110.0 + began / 10
        while play.now < 125.0:
            play.at(play.contender.wake_at)
            if play.contender._call is not None:
                out = starts <= play.now < ends
                play.reply(None if out else RenewVerdict.RENEWED)
        assert not any(isinstance(each, Ended) for each in play.news)


def test_the_term_ends_at_its_own_deadline_while_a_call_hangs() -> None:
    play = leading().at(100.0 + TRUST - 0.001)
    assert not any(isinstance(each, Ended) for each in play.news)

    play.at(100.0 + TRUST)

    assert play.news == [Ended(1, LossReason.EXPIRED)]


def test_a_reply_after_the_deadline_revives_nothing() -> None:
    play = leading().at(111.0)
    late = play.calls[-1]
    assert late.kind is CallKind.RENEW
    play.at(114.0)
    assert play.news == [Ended(1, LossReason.EXPIRED)]

    play.reply(RenewVerdict.RENEWED, late)

    assert play.news == []


def test_an_event_at_the_deadline_ends_the_term_before_anything_else() -> None:
    play = leading()
    play.now = 200.0  # suspended for a while; nobody was woken in between

    play.do("hint")

    assert play.news[0] == Ended(1, LossReason.EXPIRED)


def test_a_lost_renewal_ends_the_term() -> None:
    assert leading().at(105.0).reply(RenewVerdict.LOST).news == [Ended(1, LossReason.TAKEN_OVER)]


def test_an_acquisition_that_is_answered_too_late_is_given_back() -> None:
    play = Play()
    first = play.calls[-1]
    play.now = 100.0 + TRUST

    play.reply(won(), first)

    assert play.news == [] or play.news == [Saw(None)]
    assert play.at(play.now + 1).kinds[-1] == "release"


def test_a_term_whose_answer_was_lost_is_adopted_by_a_renewal() -> None:
    play = Play().reply(None)
    play.at(play.contender.wake_at).reply(held(ME, 1))
    assert play.kinds == ["acquire", "acquire", "renew"]

    play.reply(RenewVerdict.RENEWED)

    assert play.news == [Saw(None), Began(1, play.calls[-1].sent_at + TRUST)]


def test_a_term_that_has_ended_here_is_given_back_and_never_begun_again() -> None:
    play = leading().at(113.5)
    assert play.news == [Ended(1, LossReason.EXPIRED)]
    play.do("drained", 1).at(116.5)
    assert play.kinds[-1] == "acquire"

    play.reply(held(ME, 1))

    assert play.kinds[-1] == "release"
    play.reply(ReleaseVerdict.RELEASED).at(118.0)
    assert play.kinds[-1] == "acquire"
    assert play.reply(won(2)).news[-1] == Began(2, play.calls[-1].sent_at + TRUST)


def test_nothing_is_tried_before_the_ended_term_is_drained() -> None:
    play = leading().at(105.0).reply(RenewVerdict.LOST).at(200.0).do("hint").at(300.0)
    assert play.kinds == ["acquire", "renew"]

    play.do("drained", 1)

    assert play.kinds[-1] == "acquire"


def test_who_finds_it_held_waits_for_the_rest_and_a_jitter() -> None:
    play = Play().reply(held(remaining=10.0))

    assert play.news == [Saw(held(remaining=10.0))]
    assert play.contender.wake_at == 110.0


def test_a_hint_brings_the_attempt_forward_but_not_within_the_gap() -> None:
    play = Play().reply(held()).do("hint")
    assert play.contender.wake_at == pytest.approx(100.05)

    play.at(100.05).reply(held())
    for _ in range(100):
        play.do("hint")

    assert play.contender.wake_at == pytest.approx(100.1)
    assert len(play.calls) == 2


def test_a_hint_during_an_attempt_is_not_forgotten() -> None:
    play = Play().do("hint").reply(held())

    assert play.contender.wake_at <= 100.05


def test_resigning_keeps_the_lease_until_it_is_drained_and_then_cools_down() -> None:
    play = leading().do("resign")
    assert play.news == [Ended(1, LossReason.RESIGNED)]
    play.at(105.0).reply(RenewVerdict.RENEWED)
    assert play.kinds == ["acquire", "renew"]

    play.at(106.0).do("drained", 1).reply(ReleaseVerdict.RELEASED)
    play.do("hint").at(110.0)

    assert play.kinds[:4] == ["acquire", "renew", "release", "acquire"]
    assert play.calls[3].sent_at >= 106.0


def test_a_hint_does_not_shorten_the_cool_down() -> None:
    play = leading().do("resign").do("drained", 1).reply(ReleaseVerdict.RELEASED).do("hint")

    assert play.contender.wake_at == 100.0 + T.seconds("cooldown")


def test_a_stop_gives_back_what_is_drained_and_then_asks_for_nothing() -> None:
    play = leading().do("stop").do("drained", 1)
    assert play.kinds[-1] == "release"

    play.reply(ReleaseVerdict.RELEASED).at(1000.0).do("hint")

    assert play.news == [Ended(1, LossReason.RELEASED), Stopped(released=True)]
    assert play.kinds == ["acquire", "release"]


def test_a_release_that_fails_is_tried_three_times() -> None:
    play = leading().do("stop").do("drained", 1)
    for _ in range(3):
        play.reply(None).at(play.now + 2)

    assert play.kinds == ["acquire", *["release"] * 3]
    assert play.news[-1] == Stopped(released=False)


def test_abandoning_asks_for_nothing_at_once() -> None:
    play = leading().do("abandon")

    assert play.news == [Ended(1, LossReason.RELEASED), Stopped(released=False)]
    assert play.at(1000.0).kinds == ["acquire"]


def test_what_is_won_after_the_end_is_given_back() -> None:
    play = Play()
    first = play.calls[-1]
    play.do("abandon")

    play.reply(won(), first)

    assert play.kinds == ["acquire", "release"]


def test_an_answer_of_an_attempt_that_was_given_up_is_not_begun() -> None:
    play = Play()
    first = play.calls[-1]
    play.at(100.0 + PATIENCE + 1)
    assert len(play.calls) == 2
    play.reply(held(), play.calls[-1])

    play.reply(won(7), first)

    assert not any(isinstance(each, Began) for each in play.news)
    assert (play.calls[-1].kind, play.calls[-1].term) == (CallKind.RELEASE, 7)


def test_a_late_answer_for_the_term_that_was_adopted_changes_nothing() -> None:
    play = Play()
    first = play.calls[-1]
    play.at(100.0 + PATIENCE + 1).reply(held(ME, 1)).reply(RenewVerdict.RENEWED)
    calls = len(play.calls)

    play.reply(won(1), first)

    assert len(play.calls) == calls
    assert play.news[-1] == Began(1, play.calls[-1].sent_at + TRUST)


def test_failures_are_tried_again_for_ever_and_ever_more_rarely() -> None:
    play = Play()
    gaps = []
    for _ in range(20):
        play.reply(None)
        gaps.append(play.contender.wake_at - play.now)
        play.at(play.contender.wake_at)

    assert all(later > earlier - 1e-6 for earlier, later in pairwise(gaps))
    assert gaps[0] < 0.2
    assert gaps[-1] <= T.seconds("renew_every")
