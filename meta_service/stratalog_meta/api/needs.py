"""The role that each request to the meta service needs: one table of commands, one of other requests.

A command without a row fails at import. Nodes send what clients ask of them, so commands about topics and rights are
for parts, too. What keeps data where they are is for parts alone; the pipeline, which repairs the bucket under a write
lock, shows the token of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stratalog.model.commands import mount_commands as mounts
from stratalog.model.commands import retirement_commands as retirements
from stratalog.model.commands import rights_commands as rights
from stratalog.model.commands import table_commands as commands
from stratalog.model.roles import (
    FOR_ADMINS,
    FOR_ADMINS_AND_PARTS,
    FOR_OPERATORS,
    FOR_OPERATORS_AND_PARTS,
    FOR_PARTS,
    FOR_VIEWERS,
    Needs,
)

NEEDS: Final[Mapping[type[commands.Command[Any]], Needs]] = {
    commands.RegisterNode: FOR_PARTS,
    commands.ForgetLocal: FOR_PARTS,
    commands.ReportLostCopies: FOR_PARTS,
    commands.ReportFaultyCopies: FOR_PARTS,
    commands.CreateTopic: FOR_OPERATORS_AND_PARTS,
    commands.DeleteTopic: FOR_ADMINS_AND_PARTS,
    commands.AddShards: FOR_OPERATORS_AND_PARTS,
    commands.WidenTopic: FOR_PARTS,
    commands.AlterTopic: FOR_OPERATORS_AND_PARTS,
    commands.SealTopic: FOR_OPERATORS,
    commands.RollElsewhere: FOR_OPERATORS,
    commands.AdvanceLogStart: FOR_PARTS,
    commands.PrepareSegment: FOR_PARTS,
    commands.RollSegment: FOR_PARTS,
    commands.SealSegment: FOR_PARTS,
    commands.ReportReplica: FOR_PARTS,
    commands.ProposeIsr: FOR_PARTS,
    commands.BeginRecovery: FOR_OPERATORS_AND_PARTS,
    commands.PromiseFence: FOR_PARTS,
    commands.SealUnclean: FOR_ADMINS,
    commands.PurgeSegments: FOR_PARTS,
    commands.CommitParts: FOR_PARTS,
    commands.ReplaceParts: FOR_PARTS,
    commands.CompleteRemote: FOR_PARTS,
    commands.ReplaceManifest: FOR_PARTS,
    commands.AcquireLock: FOR_PARTS,
    commands.ReleaseLock: FOR_PARTS,
    commands.AllocateProducerIds: FOR_PARTS,
    mounts.CreateMount: FOR_OPERATORS_AND_PARTS,
    mounts.MountCut: FOR_OPERATORS_AND_PARTS,
    mounts.BeginMount: FOR_OPERATORS_AND_PARTS,
    mounts.TakeMount: FOR_PARTS,
    mounts.DoubtMount: FOR_PARTS,
    mounts.ReleaseMount: FOR_PARTS,
    mounts.MoveMount: FOR_OPERATORS_AND_PARTS,
    mounts.EndMount: FOR_OPERATORS_AND_PARTS,
    mounts.OpenVolume: FOR_PARTS,
    mounts.CloseVolume: FOR_PARTS,
    retirements.RetireNode: FOR_OPERATORS,
    retirements.CancelRetirement: FOR_OPERATORS,
    retirements.ReportSighting: FOR_PARTS,
    retirements.ReportInventory: FOR_PARTS,
    rights.CreateRules: FOR_ADMINS_AND_PARTS,
    rights.DeleteRules: FOR_ADMINS_AND_PARTS,
    rights.AlterCredentials: FOR_ADMINS_AND_PARTS,
    rights.AlterQuotas: FOR_ADMINS_AND_PARTS,
}
"""A command that gives data up by force needs the role of an admin besides (`Caller.check_command`)."""
OTHER_NEEDS: Final[Mapping[tuple[str, str], Needs]] = {
    ("GET", "/v1/snapshot"): FOR_VIEWERS,
    ("GET", "/v1/watch"): FOR_VIEWERS,
    ("GET", "/openapi.json"): FOR_VIEWERS,
}
"""Of snapshot and watch, credentials of users are for parts alone (`Caller.check_credentials`)."""
