"""Rounds between two nodes: they name what moved, and nothing that rests costs anything."""

from __future__ import annotations

import random
import uuid

import pytest

from stratalog.machines.following.fetch_rounds import (
    FetchRounds,
    NamesByShard,
    RoundAnswered,
    SegmentName,
    SegmentUnwanted,
    SegmentWanted,
    SendRound,
    SessionLost,
    TurnEnded,
)
from stratalog.machines.following.fetch_session import FetchSession, SessionFault
from stratalog.machines.token_bucket import TokenBucket

TOPIC = uuid.UUID(int=1)


def name_of(shard: int, epoch: int = 0) -> SegmentName:
    return SegmentName(TOPIC, shard, epoch)


class Pair:
    """A follower's rounds and its leader's session, with a log of one number per segment; every look is counted."""

    def __init__(self, rate_per_s: float = 1e9, **options: int) -> None:
        self.rounds = FetchRounds(TokenBucket(rate_per_s, 100, 0), **options)
        self.session = FetchSession(9)
        self.ends: dict[SegmentName, int] = {}
        self.copies: dict[SegmentName, int] = {}
        self.line: list[SendRound] = []
        self.looks = 0
        self.now_ms = 0.0

    def follow(self, *names: SegmentName, is_throttled: bool = False) -> None:
        for name in names:
            self.ends.setdefault(name, 0)
            self.want(name, is_throttled)
        self.turn()

    def want(self, name: SegmentName, is_throttled: bool = False) -> None:
        self.rounds.step(SegmentWanted(name, self.copies.setdefault(name, 0), is_throttled), self.now_ms)

    def turn(self) -> None:
        for sent in self.rounds.step(TurnEnded(), self.now_ms):
            assert self.session.receive_round(sent.session_id, sent.session_epoch, sent.asks, sent.forgotten) is None
            self.line.append(sent)
        self.rounds.check_invariants()

    def append(self, *names: SegmentName) -> None:
        for name in names:
            self.ends[name] += 1
            self.session.moved(name)

    def answer(self, most: int = 1_000) -> list[SegmentName]:
        """The leader looks at what is ready, and answers the oldest round with it; the follower takes all of it."""
        self.line.pop(0)
        found = []
        for name in self.session.take_ready(most):
            self.looks += 1
            offset = self.session.offset_of(name)
            assert offset is not None
            if self.ends[name] > offset:
                self.session.sent(name)
                found.append((name, 10))
        self.rounds.step(RoundAnswered(self.session.session_id, tuple(found)), self.now_ms)
        for name, _ in found:
            self.copies[name] = self.ends[name]
            if name in self.rounds._wanted:
                self.want(name, name in self.rounds._throttled)
        self.turn()
        return [name for name, _ in found]


def test_a_thousand_idle_segments_cost_no_round_and_no_look() -> None:
    pair = Pair()
    names = [name_of(shard) for shard in range(1_000)]
    pair.follow(*names)
    assert pair.answer() == []
    sent, looks = pair.rounds.asks_sent, pair.looks
    assert sent == looks == 1_000, "each is told and looked at once, when it is first followed"
    busy = names[7]
    for _ in range(100):
        pair.append(busy)
        assert pair.answer() == [busy]
        pair.answer()  # its confirmation, with nothing new
    assert pair.rounds.asks_sent - sent == 100, "one confirmation for each append"
    assert pair.looks - looks <= 200


def test_an_append_is_confirmed_by_the_next_round() -> None:
    pair = Pair()
    pair.follow(name_of(1))
    pair.answer()
    pair.append(name_of(1))
    pair.answer()
    assert pair.line[-1].asks == ((name_of(1), 1),)


def test_one_round_is_held_and_only_news_end_it() -> None:
    pair = Pair()
    pair.follow(name_of(1))
    pair.answer()
    assert len(pair.line) == 1
    pair.turn()
    assert len(pair.line) == 1, "nothing new: the held round is enough"
    pair.follow(name_of(2))
    assert len(pair.line) == 2 and pair.line[1].asks == ((name_of(2), 0),)
    pair.follow(name_of(3))
    assert len(pair.line) == 2, "no third one"
    pair.answer()
    assert pair.line[-1].asks == ((name_of(3), 0),)


def test_nothing_is_sent_before_the_first_answer_named_the_session() -> None:
    pair = Pair()
    pair.follow(name_of(1))
    pair.follow(name_of(2))
    assert len(pair.line) == 1
    pair.answer()
    assert pair.line[-1].session_id == pair.session.session_id


def test_what_was_answered_comes_no_more_before_it_is_reported_again() -> None:
    """A follower that flushes, or has no room, is not sent the same again."""
    pair = Pair()
    pair.follow(name_of(1))
    pair.answer()
    pair.append(name_of(1))
    pair.rounds.step(SegmentUnwanted(name_of(1)), 0)  # while it flushes
    assert pair.answer() == [name_of(1)]
    pair.append(name_of(1))
    assert not pair.session.has_ready
    pair.follow(name_of(1))
    assert pair.session.has_ready


def test_what_came_and_was_not_taken_is_asked_for_again() -> None:
    pair = Pair()
    pair.follow(name_of(1))
    pair.answer()
    pair.append(name_of(1))
    pair.line.pop(0)
    pair.session.take_ready(10)
    pair.session.sent(name_of(1))
    pair.rounds.step(RoundAnswered(9, ((name_of(1), 10),)), 0)  # the disk took nothing
    pair.turn()
    assert pair.line[-1].asks == ((name_of(1), 0),)
    assert pair.answer() == [name_of(1)]


def test_a_segment_that_is_let_go_is_forgotten_and_its_neighbour_is_not() -> None:
    """A shard is forgotten as a whole; at a roll two of its segments are followed."""
    pair = Pair()
    pair.follow(name_of(1, 4), name_of(1, 5), name_of(2))
    pair.answer()
    pair.rounds.step(SegmentUnwanted(name_of(1, 4)), 0)
    pair.turn()
    assert pair.line[-1].forgotten == ((TOPIC, 1),)
    assert pair.line[-1].asks == ((name_of(1, 5), 0),)
    assert set(pair.session.names()) == {name_of(1, 5), name_of(2)}


def test_a_lost_session_names_all_again() -> None:
    pair = Pair()
    pair.follow(name_of(1), name_of(2))
    pair.answer()
    pair.rounds.step(SessionLost(), 0)
    pair.line.clear()
    pair.session = FetchSession(10)
    pair.turn()
    assert (pair.line[0].session_id, len(pair.line[0].asks)) == (0, 2)


def test_a_session_takes_its_rounds_in_order_and_no_others() -> None:
    session = FetchSession(9)
    assert session.receive_round(9, 0, (), ()) is None
    assert session.receive_round(9, 2, (), ()) is SessionFault.WRONG_EPOCH
    assert session.receive_round(8, 1, (), ()) is SessionFault.UNKNOWN
    assert session.receive_round(9, 1, ((name_of(1), 5),), ()) is None
    assert session.receive_round(0, 0, (), ()) is None, "begun again"
    assert len(session) == 0


def test_many_segments_are_reported_in_several_rounds() -> None:
    pair = Pair(most_asks=10)
    pair.follow(*(name_of(shard) for shard in range(25)))
    while len(pair.session) < 25:
        pair.answer()
    assert pair.rounds.rounds_sent <= 4


def test_a_replica_that_catches_up_waits_for_its_share_and_holds_up_no_other() -> None:
    pair = Pair(rate_per_s=10)
    late, busy = name_of(1), name_of(2)
    pair.follow(late, is_throttled=True)
    pair.follow(busy)
    pair.answer()
    pair.answer()
    for _ in range(11):  # 100 bytes at once, and then a debt
        pair.append(late)
        pair.answer()
        if pair.rounds.waits_for_room:
            break
        pair.answer()
    assert pair.rounds.waits_for_room
    pair.append(late, busy)
    assert pair.answer() == [busy]
    pair.now_ms += 2_000
    pair.turn()
    assert not pair.rounds.waits_for_room


def test_who_is_out_of_the_isr_says_again_where_it_is_though_nothing_moves() -> None:
    """The leader lets a replica in when it fetches: one that has everything would never be heard again."""
    pair = Pair()
    pair.follow(name_of(1), name_of(2))
    pair.answer()
    pair.want(name_of(1), is_throttled=True)  # it was taken out of the ISR
    pair.answer()
    assert pair.line[-1].asks == ((name_of(1), 0),)


def test_who_is_out_of_the_isr_is_heard_beside_one_that_is_never_at_rest() -> None:
    pair = Pair()
    quiet, busy = name_of(1), name_of(2)
    pair.follow(busy)
    pair.follow(quiet, is_throttled=True)
    said = 0
    for _ in range(40):
        pair.append(busy)
        pair.now_ms += 50
        pair.answer()
        said += any((quiet, 0) in sent.asks for sent in pair.line[-1:])
    assert 3 <= said <= 5, "every half second, though each round brings something of the other"


@pytest.mark.fault("replica-isr-shard-quiet")
def test_who_is_out_of_the_isr_does_not_end_its_own_rounds_by_saying_so() -> None:
    """A round that is ended is answered in vain at once: said again each time, rounds would chase each other."""
    pair = Pair()
    pair.follow(name_of(1), is_throttled=True)
    pair.answer()
    pair.follow(name_of(2))  # news, which end the round that is held
    assert len(pair.line) == 2
    pair.answer()
    assert len(pair.line) == 1, "the newer one is held now, and nothing ends it"
    pair.now_ms += 500
    pair.answer()
    assert pair.line[-1].asks == ((name_of(1), 0),), "once it has been held to its end"


def test_what_found_no_room_in_an_answer_comes_first_in_the_next() -> None:
    session = FetchSession(9)
    session.receive_round(0, 0, [(name_of(shard), 0) for shard in range(4)], ())
    first = session.take_ready(3)
    session.put_back(first[1:])
    assert session.take_ready(9) == [name_of(1), name_of(2), name_of(3)]


def test_random_lives_end_with_everything_copied() -> None:
    for seed in range(50):
        dice = random.Random(seed)
        pair = Pair(most_asks=dice.choice([1, 3, 100]))
        names = [name_of(dice.randrange(4), epoch) for epoch in range(8)]
        for _ in range(200):
            name = dice.choice(names)
            match dice.randrange(4):
                case 0:
                    pair.follow(name)
                case 1 if name in pair.ends:
                    pair.append(name)
                case 2 if pair.line:
                    pair.answer(dice.choice([1, 100]))
                case 3 if dice.random() < 0.3:
                    pair.rounds.step(SegmentUnwanted(name), 0)
                    pair.turn()
        pair.follow(*names)
        for _ in range(100):
            if pair.line:
                pair.answer()
        assert {name: pair.copies[name] for name in names} == {name: pair.ends[name] for name in names}, seed


@pytest.mark.fault("segment-far")
def test_one_that_is_far_behind_takes_its_turn_and_keeps_no_other_waiting() -> None:
    pair = Pair()
    far, *others = [name_of(shard) for shard in range(10)]
    pair.follow(far, *others)
    pair.answer()
    pair.append(far, *others)
    answered: list[SegmentName] = []
    while not set(others) <= set(answered):
        pair.append(far)  # there is always more of it
        answered += pair.answer(most=2)
        assert len(answered) <= 2 * len(others), "as many answers as there are segments, and as many of the one"
    assert answered.count(far) <= len(others)


@pytest.mark.parametrize("seed", range(20))
def test_names_are_found_by_shard_whatever_was_added_and_discarded(seed: int) -> None:
    chance, names, known = random.Random(seed), NamesByShard(), set[SegmentName]()
    for _ in range(300):
        name = name_of(chance.randrange(10), chance.randrange(4))
        if name in known:
            names.discard(name)
            known.discard(name)
        else:
            names.add(name)
            known.add(name)
        names.discard(name_of(11))
        shards = [(TOPIC, shard) for shard in chance.sample(range(12), 3)]
        found = names.of(shards)
        assert len(found) == len(set(found))
        assert set(found) == {one for one in known if (one.topic_id, one.shard) in shards}
    names.clear()
    assert names.of([(TOPIC, shard) for shard in range(10)]) == []


@pytest.mark.fault("node-leads-thousands-shards")
def test_a_round_that_forgets_one_shard_of_thousands_names_no_other_again() -> None:
    pair = Pair()
    pair.follow(*[name_of(shard) for shard in range(1_000)])
    pair.answer()
    pair.rounds.step(SegmentUnwanted(name_of(7)), 0)
    pair.rounds.step(SegmentWanted(name_of(7, epoch=1), 0), 0)
    (round_,) = pair.rounds.step(TurnEnded(), 0)
    assert (round_.asks, round_.forgotten) == (((name_of(7, epoch=1), 0),), ((TOPIC, 7),))
    assert pair.session.names_of(round_.forgotten) == [name_of(7)]
    pair.session.receive_round(round_.session_id, round_.session_epoch, round_.asks, round_.forgotten)
    assert pair.session.names_of(round_.forgotten) == [name_of(7, epoch=1)]
    assert len(pair.session) == 1_000


def unfollow_while_answered(pair: Pair, name: SegmentName) -> None:
    """Its data is under way when it is followed no more, with the next round."""
    pair.append(name)
    pair.answer()  # with its data; the confirmation is under way
    pair.append(name)
    answered = pair.session.take_ready(1)
    pair.session.sent(*answered)
    pair.rounds.step(RoundAnswered(9, ((name, 10),)), pair.now_ms)
    pair.line.pop(0)
    pair.rounds.step(SegmentUnwanted(name), pair.now_ms)
    pair.turn()


@pytest.mark.fault("followed-segment-dropped-in-flight")
def test_a_segment_let_go_while_its_data_is_under_way_leaves_the_session() -> None:
    pair = Pair()
    pair.follow(name_of(1), name_of(2))
    pair.answer()
    unfollow_while_answered(pair, name_of(1))
    assert name_of(1) in pair.session.names()
    while pair.now_ms <= 6_000:
        pair.now_ms += 500
        pair.answer()
    assert set(pair.session.names()) == {name_of(2)}


def test_a_segment_that_is_flushed_meanwhile_is_not_forgotten() -> None:
    """Its follower asks for no more until what came is on the disk."""
    pair = Pair()
    pair.follow(name_of(1), name_of(2))
    pair.answer()
    for _ in range(50):
        unfollow_while_answered(pair, name_of(1))
        pair.append(name_of(2))
        pair.answer()
        pair.now_ms += 500
        pair.copies[name_of(1)] = pair.ends[name_of(1)]
        pair.follow(name_of(1))
        assert not any(sent.forgotten for sent in pair.line)


@pytest.mark.fault("followed-segment-dropped-in-flight")
def test_a_neighbour_for_which_a_round_has_no_room_is_named_where_it_is_now() -> None:
    pair = Pair(most_asks=2)
    near, cut = name_of(1, 1), name_of(1, 2)
    pair.copies[cut] = pair.ends[cut] = 7
    pair.follow(near, cut)
    pair.answer()
    pair.follow(name_of(3), name_of(4))
    pair.follow(name_of(5), name_of(6))
    pair.copies[cut] = 5  # a recovery cut it
    pair.want(cut)
    pair.rounds.step(SegmentUnwanted(near), 0)
    pair.answer()
    assert (cut, 5) in pair.line[-1].asks
    assert pair.answer() == [cut]


@pytest.mark.fault("followed-segment-dropped-in-flight")
@pytest.mark.parametrize("most_asks", [1, 2, 2_000])
def test_whatever_is_under_way_the_session_ends_with_what_is_followed_and_its_copies_are_whole(most_asks: int) -> None:
    names = [name_of(shard, epoch) for shard in range(4) for epoch in range(2)]
    for seed in range(30):
        chance, pair = random.Random(seed), SlowPair(most_asks)
        for name in names:
            pair.ends[name] = pair.copies[name] = 0
        for _ in range(300):
            pair.now_ms += chance.random() * 100
            pair.does(chance.random(), chance.choice(names), chance)
        pair.refused.clear()
        for _ in range(200):
            pair.now_ms += 100
            pair.turn()
            while pair.line:
                pair.receive()
            pair.look(is_overdue=not pair.answers)
            while pair.answers:
                pair.hear()
        followed = pair.rounds._wanted.keys()
        assert all(pair.copies[name] == pair.ends[name] for name in followed), seed
        assert not followed or set(pair.session.names()) == followed, seed


class SlowPair(Pair):
    """As `Pair`, but rounds and answers take their time."""

    def __init__(self, most_asks: int) -> None:
        super().__init__(most_asks=most_asks)
        self.answers: list[tuple[dict[SegmentName, tuple[int, int]], list[SegmentName]]] = []
        """That are on their way: the ranges that they bring, and what they refuse."""
        self.refused: set[SegmentName] = set()
        self.is_held = False

    def does(self, what: float, name: SegmentName, chance: random.Random) -> None:
        if what < 0.15:
            self.want(name, chance.random() < 0.2)
        elif what < 0.3:
            self.rounds.step(SegmentUnwanted(name), self.now_ms)
        elif what < 0.45:
            self.append(name)
            self.look()
        elif what < 0.48 and self.copies[name] and name in self.rounds._wanted:
            self.copies[name] -= 1
            self.want(name)
        elif what < 0.5:
            self.refused ^= {name}
        elif what < 0.7 and self.line:
            self.receive()
        elif what < 0.9 and self.answers:
            self.hear()
        else:
            self.look(is_overdue=what > 0.97)
        if chance.random() < 0.6:
            self.turn()

    def turn(self) -> None:
        self.line += self.rounds.step(TurnEnded(), self.now_ms)
        self.rounds.check_invariants()

    def receive(self) -> None:
        sent = self.line.pop(0)
        assert self.session.receive_round(sent.session_id, sent.session_epoch, sent.asks, sent.forgotten) is None
        if self.is_held:
            self.answers.append(({}, []))
        self.is_held = True
        self.look()

    def look(self, *, is_overdue: bool = False) -> None:
        if not self.is_held:
            return
        found: dict[SegmentName, tuple[int, int]] = {}
        refused = []
        for name in self.session.take_ready(2):
            offset = self.session.offset_of(name)
            assert offset is not None
            if name in self.refused:
                self.session.drop(name)
                refused.append(name)
            elif offset < self.ends[name]:
                self.session.sent(name)
                found[name] = offset, self.ends[name]
        if found or refused or is_overdue:
            self.is_held = False
            self.answers.append((found, refused))
        elif self.session.has_ready:
            self.look()

    def hear(self) -> None:
        found, refused = self.answers.pop(0)
        told = tuple((name, 10) for name in found)
        self.rounds.step(RoundAnswered(self.session.session_id, told, tuple(refused)), self.now_ms)
        for name, (offset, end) in found.items():
            if name in self.rounds._wanted and self.copies[name] == offset:
                self.copies[name] = end
                self.want(name, name in self.rounds._throttled)
        self.turn()
