"""`stratalog snapshot create | list | show | delete`: holds the nodes for a moment, waits until the bucket has what the
cut needs, and puts the cut there."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.cuts import Confirmed, CutRequest, Held, HoldRequest
from stratalog.admin_api.models import SealRequest, SegmentInfo, TopicInfo
from stratalog.formats.bucket.cut import check_cut_name, decode_cut, encode_cut
from stratalog.formats.bucket.object_names import CutName, ObjectNames
from stratalog.machines.reading.consistent_cut import ReportedEnd, TieredSegment, coverage, join, unreported_shards
from stratalog.model.counting import counted, did_you_mean
from stratalog.model.cut import Cut, CutShard
from stratalog.model.errors import (
    AlreadyExists,
    Conflict,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    StratalogError,
    Unavailable,
)
from stratalog.model.ids import ShardKey
from stratalog.model.topic import Topic
from stratalog.objects import ObjectStore, open_store
from stratalog_cli.connect.several_nodes import Nodes
from stratalog_cli.topics.segments import merged

_ATTEMPTS: Final = 5
_PAUSE_S: Final = 0.2
_COMPLETE: Final = "complete"
_OF_A_CLUSTER: Final = ("data/", "bundles/", "meta/", "cuts/")
T = TypeVar("T")


# Making one ---------------------------------------------------------------------------------------------------------
def create(
    name: str, bucket: str, admin: str | None, topics: Sequence[str], wait_s: float, say: Callable[[str], None]
) -> Cut:
    """Raises: Conflict where a node has no object store, NotFound for a topic, Unavailable when it does not come
    about."""
    check_cut_name(name)
    nodes = Nodes(admin, is_write=True)
    nodes.learn_all_nodes()
    wanted = _wanted(nodes.first(lambda node: node.topics()), topics)
    _require_uploads(nodes)
    say("holding the nodes")
    cluster_id, cut_id, ends = _hold(nodes, wanted)
    say("sealing what is being written")
    for topic in wanted:
        _ask_all(nodes.clients, partial(_seal, request=SealRequest(topic=topic.name)))
    names = {topic.topic_id: topic.name for topic in wanted}
    listed = partial(_listed, nodes)
    epochs = _until_in_bucket(listed, ends, names, time.monotonic() + wait_s, say)
    shards = tuple(
        CutShard(key, end.log_start_offset, end.end_offset, epochs[key]) for key, end in sorted(ends.items())
    )
    cut = Cut(cluster_id, name, int(time.time() * 1_000), wanted, shards)

    def check() -> None:
        # The cut pins from now on. Metadata that are read after this show what was deleted before.
        reader = _with_new_metadata(nodes.clients, CutRequest(cut_id=cut_id))
        _until_in_bucket(reader.segments, ends, names, time.monotonic(), say)

    _put_checked(bucket, cut, check, say)
    return cut


def _put_checked(bucket: str, cut: Cut, check: Callable[[], None], say: Callable[[str], None]) -> None:
    """Puts the cut, then checks it. However that ends, a cut that was not checked to its end is deleted: also where the
    answer to the put was lost, or a person stops the command."""
    try:
        with_bucket(bucket, lambda store: _put_beside_data(store, cut))
        check()
    except AlreadyExists:
        raise
    except BaseException:
        try:
            with_bucket(bucket, lambda store: _withdraw(store, cut))
        except StratalogError as error:
            say(f"snapshot {cut.name!r} was not checked to its end, and may be in the bucket ({error}): delete it")
        raise


def _with_new_metadata(clients: Sequence[AdminClient], request: CutRequest) -> AdminClient:
    """A node whose metadata are not older than this call. One that was started again since it was held does not know
    the cut any more. Raises: Unavailable where none of them does."""
    why = ""
    for client in clients:
        try:
            client.confirm_cut(request)
        except (NotFound, Unavailable, OutcomeUnknown) as error:
            why = str(error)
        else:
            return client
    raise Unavailable(f"no consistent snapshot could be made: {why}; try again")


def _wanted(known: Sequence[TopicInfo], names: Sequence[str]) -> tuple[Topic, ...]:
    found = {topic.name for topic in known}
    missing = sorted(set(names) - found)
    if missing:
        missing_names = ", ".join(f"{one}{did_you_mean(one, found)}" for one in missing)
        raise NotFound(f"there is no topic {missing_names}; `stratalog topics list` shows all")
    chosen = [topic for topic in known if not names or topic.name in names]
    return tuple(
        Topic(
            one.name,
            UUID(one.topic_id),
            one.shards,
            one.replication_factor,
            one.settings,
            one.created_ms,
            one.is_internal,
        )
        for one in chosen
    )


def _require_uploads(nodes: Nodes) -> None:
    """Asked first: what is never uploaded would be waited for until --wait is over.

    Raises: Conflict where a node has no object store."""
    without = [status.node_id for status in nodes.each(lambda node: node.status()) if status.bucket is None]
    if without:
        which = f"node {without[0]} has" if len(without) == 1 else f"nodes {', '.join(map(str, without))} have"
        raise Conflict(f"{which} no object store, so a snapshot can never be whole: start every node with --bucket URL")


def _hold(nodes: Nodes, topics: Sequence[Topic]) -> tuple[str, UUID, dict[ShardKey, ReportedEnd]]:
    """Tried again when a leader changes, or a node answers too late, or ends, while it lasts."""
    why = ""
    for _ in range(_ATTEMPTS):
        try:
            return _hold_once(nodes.clients, topics)
        except (Conflict, NotFound, Unavailable, OutcomeUnknown) as error:
            why = str(error)  # a cut is one moment: what one of them did, or did not hear, voids it for all
        time.sleep(_PAUSE_S)
    raise Unavailable(f"no consistent snapshot could be made in {_ATTEMPTS} tries: {why}; try again")


def _hold_once(
    clients: Sequence[AdminClient], topics: Sequence[Topic]
) -> tuple[str, UUID, dict[ShardKey, ReportedEnd]]:
    """Raises: what voids it."""
    shards = {ShardKey(topic.topic_id, shard): None for topic in topics for shard in range(topic.shard_count)}
    cut_id = uuid.uuid4()
    request = CutRequest(cut_id=cut_id)
    try:
        held = _ask_all(clients, partial(_hold_one, request=HoldRequest(cut_id=cut_id)))
    finally:
        released = _ask_all(clients, partial(_release, request=request))
    if not all(released):
        raise Unavailable(
            "the hold on one node ended before all nodes were held: that node ended, or its network is slow"
        )
    ends = {key: end for key, end in join(_reported_ends(held)).items() if key in shards}
    missing = unreported_shards(shards, ends)
    if missing:
        names = {topic.topic_id: topic.name for topic in topics}
        where = f"shard {missing[0].shard} of topic {names[missing[0].topic_id]}"
        raise Unavailable(f"no node of --admin leads {where} (and {len(missing) - 1} more): name all nodes")
    asked = [node for node, one in zip(clients, held, strict=True) if _leads_any(one, ends)]
    for confirmed in _ask_all(asked, partial(_confirm, request=request)):
        if confirmed.fault is not None:
            raise Unavailable(confirmed.fault)
    return held[0].cluster_id, cut_id, ends


def _leads_any(held: Held, ends: Mapping[ShardKey, ReportedEnd]) -> bool:
    return any(end.node_id == held.node_id for end in ends.values())


def _reported_ends(held: Sequence[Held]) -> list[ReportedEnd]:
    return [
        ReportedEnd(ShardKey(one.topic_id, one.shard), node.node_id, one.epoch, one.log_start_offset, one.end_offset)
        for node in held
        for one in node.shards
    ]


def _hold_one(node: AdminClient, request: HoldRequest) -> Held:
    return node.hold_cut(request)


def _confirm(node: AdminClient, request: CutRequest) -> Confirmed:
    return node.confirm_cut(request)


def _seal(node: AdminClient, request: SealRequest) -> None:
    with suppress(NotFound):  # no shard of the topic is there
        node.seal(request)


def _release(node: AdminClient, request: CutRequest) -> bool:
    try:
        return node.release_cut(request).was_held
    except StratalogError:
        return False  # it lets go by itself


def _ask_all(clients: Sequence[AdminClient], ask: Callable[[AdminClient], T]) -> list[T]:
    """All at once. Raises what the first of them raised."""
    with ThreadPoolExecutor(max(1, len(clients))) as threads:
        return list(threads.map(ask, clients))


def _listed(nodes: Nodes) -> list[SegmentInfo]:
    return merged(nodes.each(lambda node: node.segments()))


def _until_in_bucket(
    listed: Callable[[], list[SegmentInfo]],
    ends: Mapping[ShardKey, ReportedEnd],
    names: Mapping[UUID, str],
    deadline_s: float,
    say: Callable[[str], None],
) -> dict[ShardKey, int]:
    """The epoch of each shard's last segment, once all lie in the bucket."""
    ids = {name: topic_id for topic_id, name in names.items()}
    while True:
        segments: dict[ShardKey, list[TieredSegment]] = {}
        for one in listed():
            if one.topic in ids and one.state != "deleted":
                segments.setdefault(ShardKey(ids[one.topic], one.shard), []).append(_tiered(one))
        found = {key: coverage(end, segments.get(key, ())) for key, end in ends.items()}
        for key, covered in found.items():
            if covered.fault is not None:
                raise Unavailable(f"shard {key.shard} of topic {names[key.topic_id]}: {covered.fault}; try again")
        waiting = [key for key, covered in found.items() if not covered.is_complete]
        if not waiting:
            return {key: covered.epoch for key, covered in found.items()}
        if time.monotonic() > deadline_s:
            where = f"shard {waiting[0].shard} of topic {names[waiting[0].topic_id]}"
            raise Unavailable(
                f"{len(waiting)} of {counted(len(ends), 'shard')} not whole in the bucket, such as {where}: is "
                "remote.storage.enable set, does `status` show a problem?"
            )
        say(f"uploading: {len(waiting)} of {counted(len(ends), 'shard')} left")
        time.sleep(_PAUSE_S)


def _tiered(one: SegmentInfo) -> TieredSegment:
    return TieredSegment(one.epoch, one.base_offset, one.end_offset, one.remote_state == _COMPLETE)


# In the bucket ------------------------------------------------------------------------------------------------------
def with_bucket(url: str, do: Callable[[ObjectStore], Awaitable[T]]) -> T:
    async def run() -> T:
        store = open_store(url)
        try:
            return await do(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def _put_beside_data(store: ObjectStore, cut: Cut) -> None:
    """Puts the cut into the bucket of its data. In another one it would pin nothing and could not be restored. Raises:
    Conflict."""
    if not await _is_bucket_of(store, cut):
        raise Conflict(
            f"{store.url} holds none of the data of cluster {cut.cluster_id}, so it is not its bucket: no snapshot was "
            "made. `stratalog status` shows the node's object store; give that one with --bucket"
        )
    await _put(store, cut)


async def _is_bucket_of(store: ObjectStore, cut: Cut) -> bool:
    """Looks at one shard: whatever a cut needs is complete in the cluster's bucket by now."""
    needed = next((one.key for one in cut.shards if one.log_start_offset < one.end_offset), None)
    if needed is None:
        return True
    return await _holds(store, ObjectNames("", cut.cluster_id).shard_prefix(needed))


async def _holds(store: ObjectStore, prefix: str) -> bool:
    async for _ in store.list(prefix):
        return True
    return False


async def _put(store: ObjectStore, cut: Cut) -> None:
    key = ObjectNames("", cut.cluster_id).build(CutName(cut.name))
    try:
        await store.put(key, [encode_cut(cut)])
    except AlreadyExists:
        raise AlreadyExists(f"there is a snapshot {cut.name!r} already: choose another name, or delete it") from None


async def find(store: ObjectStore, cluster_id: str | None) -> list[Cut]:
    """All in the bucket, by cluster and name. Without a cluster everything is listed. Raises: NotFound where there is
    nothing of a cluster, or of this one: a mistyped place must not look like one without snapshots."""
    prefix = "" if cluster_id is None else ObjectNames("", cluster_id).cuts_prefix
    found: list[Cut] = []
    is_any = False
    async for info in store.list(prefix):
        cluster, _, below = info.key.partition("/")
        is_any = is_any or below.startswith(_OF_A_CLUSTER)
        if "/cuts/" in info.key and isinstance(ObjectNames("", cluster).parse(info.key), CutName):
            found.append(decode_cut(await store.get(info.key), source=info.key))
    if not is_any and cluster_id is None:
        raise NotFound(f"{store.url} holds nothing of any cluster: is it the right bucket, and the right prefix?")
    if not is_any and not await _holds(store, f"{cluster_id}/"):
        raise NotFound(f"{store.url} holds nothing of cluster {cluster_id}: `stratalog status` shows a cluster's id")
    return found


async def find_one(store: ObjectStore, cluster_id: str | None, name: str) -> Cut:
    """Raises: NotFound, InvalidRequest where several clusters have one of this name."""
    check_cut_name(name)
    found = [cut for cut in await find(store, cluster_id) if cut.name == name]
    if not found:
        raise NotFound(f"there is no snapshot {name!r} in {store.url}; `stratalog snapshot list` shows all")
    if len(found) > 1:
        clusters = ", ".join(cut.cluster_id for cut in found)
        raise InvalidRequest(f"several clusters have a snapshot {name!r}: name one by --cluster ({clusters})")
    return found[0]


async def _withdraw(store: ObjectStore, cut: Cut) -> None:
    """Deletes the cut if it is there; another one of its name stays."""
    with suppress(NotFound):
        if await store.get(ObjectNames("", cut.cluster_id).build(CutName(cut.name))) == encode_cut(cut):
            await _delete(store, cut.cluster_id, cut.name)


async def _delete(store: ObjectStore, cluster_id: str, name: str) -> None:
    await store.delete([ObjectNames("", cluster_id).build(CutName(name))])


async def delete_one(store: ObjectStore, cluster_id: str | None, name: str) -> Cut:
    cut = await find_one(store, cluster_id, name)
    await _delete(store, cut.cluster_id, cut.name)
    return cut


def as_json(cut: Cut) -> dict[str, Any]:
    names = {topic.topic_id: topic.name for topic in cut.topics}
    return {
        "name": cut.name,
        "cluster_id": cut.cluster_id,
        "created_ms": cut.created_ms,
        "topics": [topic.name for topic in cut.topics],
        "shards": [
            {
                "topic": names[shard.key.topic_id],
                "shard": shard.key.shard,
                "log_start_offset": shard.log_start_offset,
                "offset": shard.end_offset,
                "epoch": shard.epoch,
            }
            for shard in cut.shards
        ],
    }
