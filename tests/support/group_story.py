"""Plays a story of one group: commands in, results out, both as text that a person can read.

A story is lines. One that begins with `#` is a remark, one that begins with `>` is a command; the lines below it are
what must follow. Commands:

    > join a [member ID] [static INSTANCE] [offers range,roundrobin] [session MS] [rebalance MS] [v1|v3|v5|v9]
    > sync a [gives a=x b=y] [generation N]    the leader names other clients; their present member ids are used
    > beat a [generation N]                    a heartbeat
    > leave a b  /  leave instance I           one batch of leavers
    > commit a [generation N] / commit nobody  may these offsets be committed?
    > wait MS                                  time passes; the group is woken when it requested that
    > hold / > durable / > lost                appends to the group log wait / are done / fail
    > restart                                  a coordinator elsewhere takes over what is durable
    > close                                    the coordinator gives the group up
    > limit N                                  at most N members; the first command

A client is a name; its member id is the last one that it got, `NAME-1` at first.
"""

from __future__ import annotations

from dataclasses import replace

from stratalog.machines.groups import group_events
from stratalog.machines.groups.group import Group
from stratalog.model.groups.group import GroupError, GroupRecord, MemberProtocol

_ID_FIRST_SINCE, _SKIP_SINCE = 4, 9


class GroupStory:
    def __init__(self) -> None:
        self.limits = group_events.GroupLimits(min_session_timeout_ms=1_000, initial_rebalance_delay_ms=3_000)
        self.now_ms = 1_000
        self.group = Group("orders", self.limits)
        self.ids: dict[str, str] = {}
        self.births: dict[str, int] = {}
        self.waiters: dict[int, str] = {}
        self.last_waiter = 0
        self.held: list[group_events.PersistGroup | group_events.PersistMember] | None = None
        self.durable: GroupRecord | None = None
        self.out: list[str] = []

    def play(self, story: str) -> str:
        """The story with what really happened; equal to the story when it is true."""
        self.out = []
        for line in story.splitlines():
            text = line.strip()
            if text.startswith("#"):
                self.out.append(text)
            elif text.startswith(">"):
                self.out.append(text)
                before = self.group.state
                self._command(text[1:].split())
                if self.group.state is not before:
                    self.out.append(f"  group is {self.group.state}")
                self.group.check_invariants()
        return "".join(f"{line}\n" for line in self.out)

    # Commands ---------------------------------------------------------------------------------------------------
    def _command(self, words: list[str]) -> None:
        verb, *rest = words
        match verb:
            case "join":
                self._join(rest[0], _options(rest[1:]))
            case "sync":
                self._sync(rest)
            case "beat":
                name, generation = rest[0], self._generation(rest)
                self._step(group_events.HeartbeatReceived(self._waiter(name), self._id(name), None, generation))
            case "leave" if rest[0] == "instance":
                self._step(group_events.MembersLeft(self._waiter("leave"), (group_events.LeavingMember("", rest[1]),)))
            case "leave":
                self._step(
                    group_events.MembersLeft(
                        self._waiter("leave"), tuple(group_events.LeavingMember(self._id(n), None) for n in rest)
                    )
                )
            case "commit":
                self._commit(rest)
            case "wait":
                self._wait(int(rest[0]))
            case "hold":
                self.held = []
            case "durable" | "lost":
                held, self.held = self.held or [], None
                for effect in held:
                    self._settle(effect, is_lost=verb == "lost")
            case "restart":
                self.group = Group("orders", self.limits, self.durable, self.now_ms)
                self.waiters.clear()
            case "limit":
                self.limits = replace(self.limits, max_members=int(rest[0]))
                self.group = Group("orders", self.limits)
            case "close":
                self._step(group_events.GroupClosed(GroupError.NOT_COORDINATOR))
            case _:
                raise ValueError(f"no such command: {words}")

    def _join(self, name: str, options: dict[str, str]) -> None:
        version = int(options.get("version", "5"))
        self.births.setdefault(name, 0)
        member_id = options.get("member", "" if "static" in options else self._id(name))
        if not member_id:
            self.births[name] += 1
        session_ms = int(options.get("session", "10000"))
        self._step(
            group_events.MemberJoined(
                waiter=self._waiter(name),
                member_id=member_id,
                new_member_id=f"{name}-{self.births[name]}",
                instance_id=options.get("static"),
                client_id=name,
                client_host=f"host-of-{name}",
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=int(options.get("rebalance", "30000")),
                protocol_type=options.get("type", "consumer"),
                protocols=tuple(
                    MemberProtocol(protocol, f"{name}:{protocol}".encode())
                    for protocol in options.get("offers", "range").split(",")
                ),
                requires_known_id=version >= _ID_FIRST_SINCE,
                can_skip_assignment=version >= _SKIP_SINCE,
            )
        )

    def _sync(self, words: list[str]) -> None:
        name = words[0]
        given = [word.split("=") for word in words if "=" in word]
        assignments = tuple((self._id(to), what.encode()) for to, what in given)
        self._step(
            group_events.MemberSynced(
                self._waiter(name), self._id(name), None, self._generation(words), None, None, assignments
            )
        )

    def _commit(self, words: list[str]) -> None:
        if words[0] == "nobody":
            error = self.group.commit_error("", None, -1, self.now_ms)
        else:
            error = self.group.commit_error(self._id(words[0]), None, self._generation(words), self.now_ms)
        self.out.append(f"  commit of {words[0]}: {_error_words(error)}")

    def _wait(self, span_ms: int) -> None:
        until_ms = self.now_ms + span_ms
        while (deadline_ms := self.group.next_deadline_ms()) is not None and deadline_ms <= until_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            state = self.group.state
            mark = len(self.out)
            self._step(group_events.TimePassed())
            if self.group.state is not state and len(self.out) > mark:
                self.out.insert(mark, f"  after {span_ms - (until_ms - self.now_ms)} ms:")
        self.now_ms = until_ms

    # Steps ------------------------------------------------------------------------------------------------------
    def _step(self, event: group_events.GroupEvent) -> None:
        for effect in self.group.step(event, self.now_ms):
            self._perform(effect)

    def _perform(self, effect: group_events.GroupEffect) -> None:
        match effect:
            case group_events.AnswerJoin(waiter, answer):
                name = self.waiters.pop(waiter)
                if answer.error is GroupError.MEMBER_ID_REQUIRED:
                    self.ids[name] = answer.member_id
                    self.out.append(f"  {name}: join again as {answer.member_id}")
                elif answer.error is not GroupError.NONE:
                    self.out.append(f"  {name}: join refused, {_error_words(answer.error)}")
                    if answer.error is GroupError.UNKNOWN_MEMBER_ID:
                        self.ids.pop(name, None)
                else:
                    self.ids[name] = answer.member_id
                    role = f"follows {answer.leader}"
                    if answer.leader == answer.member_id:
                        role = "leads " + " ".join(member.member_id for member in answer.members)
                    skips = ", need not assign" if answer.skip_assignment else ""
                    self.out.append(
                        f"  {name}: is {answer.member_id} in generation {answer.generation}, "
                        f"{answer.protocol_name}, {role}{skips}"
                    )
            case group_events.AnswerSync(waiter, answer):
                name = self.waiters.pop(waiter)
                said = answer.assignment.decode() or "nothing"
                told = (
                    f"gets {said}" if answer.error is GroupError.NONE else f"sync refused, {_error_words(answer.error)}"
                )
                self.out.append(f"  {name}: {told}")
            case group_events.AnswerHeartbeat(waiter, error):
                self.out.append(f"  {self.waiters.pop(waiter)}: {_error_words(error)}")
            case group_events.AnswerLeave(waiter, errors):
                del self.waiters[waiter]
                self.out.append(f"  left: {', '.join(_error_words(error) for error in errors)}")
            case group_events.PersistGroup() | group_events.PersistMember():
                if self.held is not None:
                    self.held.append(effect)
                else:
                    self._settle(effect, is_lost=False)

    def _settle(self, effect: group_events.PersistGroup | group_events.PersistMember, *, is_lost: bool) -> None:
        if is_lost:
            self._step(group_events.PersistFailed(effect.ticket, GroupError.COORDINATOR_NOT_AVAILABLE))
            return
        if isinstance(effect, group_events.PersistGroup):
            self.durable = effect.record
        elif self.durable is not None:
            self.durable = self.durable.with_returned(effect.member)
        self._step(group_events.GroupPersisted(effect.ticket))

    def _waiter(self, name: str) -> int:
        self.last_waiter += 1
        self.waiters[self.last_waiter] = name
        return self.last_waiter

    def _id(self, name: str) -> str:
        return self.ids.get(name, "")

    def _generation(self, words: list[str]) -> int:
        return int(words[words.index("generation") + 1]) if "generation" in words else self.group.generation


def _options(words: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    pairs = iter(words)
    for word in pairs:
        if word[0] == "v" and word[1:].isdigit():
            options["version"] = word[1:]
        else:
            options[word] = next(pairs)
    return options


def _error_words(error: GroupError) -> str:
    return "ok" if error is GroupError.NONE else f"{error.name} ({error.value})"
