"""`tune pack pull` takes the configs of packs into a database: see `pull_all`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from tuner.cli.common import INTERRUPTED, Output
from tuner.cli.db import template_versions
from tuner.errors import BadInput, VerificationFailed

if TYPE_CHECKING:
    from tuner.devices import Device
    from tuner.packs.pack import Dropped, Pack
    from tuner.session.probing import Probed
    from tuning_db.record import Trial
    from tuning_db.store import Store


@dataclass(frozen=True)
class Pull:
    """Where configs are pulled to. `count` of each pack's are measured first, on the device."""

    device: Device
    store: Store
    out: Output
    count: int
    seed: int
    plugins: tuple[str, ...]


def pull_all(contents: Mapping[str, bytes], to: Pull) -> dict[str, Any]:
    """Take the configs of all packs for the device's family, show what becomes of each pack, and return the result for
    a program: the packs that were `pulled`, `refused` or are for `other` devices. The caller passes it to `exit_of`."""
    from tuner.packs.keys import Keys

    trusted = Keys().trusted()
    result: dict[str, Any] = {"pulled": [], "refused": [], "other": [], "interrupted": False}
    for title, content in contents.items():
        try:
            pack, taken, dropped = looked_at(content, title)
            here = to.device.key
            if (pack.kind, pack.family) != (here.kind, here.family):
                result["other"].append(f"{title}: is for {pack.kind} {pack.family}")
                continue
            if reason := untrusted(pack, trusted, title):
                raise BadInput(reason)
            result["pulled"].append({"place": title, **as_dict(pack), **_take(title, taken, dropped, to)})
        except BadInput as error:
            to.out.remark(str(error))
            result["refused"].append(str(error))
        except KeyboardInterrupt:
            result["interrupted"] = True
            break
    return result


def exit_of(place: str, device: Device, result: Mapping[str, Any]) -> None:
    """Raise typer.Exit if the command was interrupted or a pack was refused, and BadInput if no pack is for the
    device."""
    if result["interrupted"]:
        raise typer.Exit(INTERRUPTED)
    if result["refused"]:
        raise typer.Exit(VerificationFailed.exit_status)
    if not result["pulled"]:
        here = f"{device.key.kind} {device.key.family}"
        raise BadInput(f"{place}: has no pack for {device.name}, which is {here}; {'; '.join(result['other'])}")


def looked_at(content: bytes, title: str) -> tuple[Pack, list[Trial], list[Dropped]]:
    """Read a pack, and return it with the trials that can be taken and those that cannot. Raises BadInput if it is
    none."""
    from tuner.packs.pack import read_pack, sorted_out

    pack = read_pack(content, title)
    return pack, *sorted_out(pack.trials, _obsolete())


def _obsolete() -> Callable[[Trial], str]:
    """Return a function that says why a trial's template counts no longer, or ""."""
    versions = template_versions()

    def reason(trial: Trial) -> str:
        here = versions.get(trial.config.template)
        if here is None:
            return f"there is no template {trial.config.template} here"
        if here == trial.template_version:
            return ""
        return f"{trial.config.template} is of version {here} here, and was of version {trial.template_version}"

    return reason


def untrusted(pack: Pack, trusted: Mapping[str, str], title: str) -> str:
    """Return why a pack is refused whose key is not trusted, or ""."""
    if pack.key in trusted:
        return ""
    advice = f"if it is its maker's, `tune pack trust {pack.key} --name N`"
    return f"{title}: is signed by a key that you do not trust: {advice}"


def _take(title: str, taken: list[Trial], dropped: list[Dropped], to: Pull) -> dict[str, Any]:
    """Measure some of a pack's trials, add those that hold to the database, and return what became of them."""
    from tuner.packs.pack import Dropped

    probed = _probed(taken, to)
    faulty = [Dropped(one.given, one.fault) for one in probed if one.fault]
    kept = [trial for trial in taken if all(trial is not one.trial for one in faulty)]
    added = to.store.add_many(kept)
    gone = [*dropped, *faulty]
    counts = f"{added} configs added, {len(kept) - added} known, {len(gone)} dropped; {len(probed)} measured here"
    to.out.show(f"{title}: {counts}")
    return {
        "added": added,
        "known": len(kept) - added,
        "measured": len(probed),
        "dropped": remarked(to.out, gone),
    }


def _probed(trials: list[Trial], to: Pull) -> list[Probed]:
    from tuner.measure import MeasureOptions, check_toolchain, open_runner
    from tuner.session.probing import probe

    if not to.count:
        return []
    check_toolchain(to.device.target)
    probed: list[Probed] = []
    with open_runner(to.device, MeasureOptions(plugins=to.plugins)) as runner:
        for one in probe(trials, to.device, to.store, runner, count=to.count, seed=to.seed):
            probed.append(one)
            gain = "" if one.gain is None else f", {one.gain:.2f} of the untuned config's time"
            to.out.remark(f"measured {len(probed)}: {one.given.workload.op} by {one.given.config.template}{gain}")
    return probed


def remarked(out: Output, dropped: list[Dropped]) -> list[dict[str, str]]:
    """Show what was dropped and why, and return it for a program."""
    out.remark_some([f"dropped {one}" for one in dropped])
    return [{"config": str(one).partition(": ")[0], "reason": one.reason} for one in dropped]


def as_dict(pack: Pack) -> dict[str, Any]:
    """Return what a pack says of itself, for a program."""
    return {
        "name": pack.name,
        "kind": pack.kind,
        "family": pack.family,
        "models": pack.models,
        "trials": len(pack.trials),
        "made": pack.made.isoformat(),
        "key": pack.key,
        "note": pack.note,
    }
