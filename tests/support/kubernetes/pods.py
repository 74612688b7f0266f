"""Reads a pod's specification as a kubelet does: environment, volumes, users, quantities. Pure but for `fill`.

What it does not know is refused, so that a chart that begins to use a word of Kubernetes is seen: see `UNUSED` for what
has no meaning on one machine.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.support.kubernetes.containers import ContainerSpec, Image, Mount
from tests.support.kubernetes.manifests import Manifest

CONTAINER: Final = frozenset(
    {
        *("name", "image", "command", "args", "env", "volumeMounts", "securityContext", "ports", "lifecycle"),
        *("startupProbe", "readinessProbe", "livenessProbe"),
    }
)
POD: Final = frozenset(
    {"containers", "initContainers", "volumes", "securityContext", "terminationGracePeriodSeconds", "restartPolicy"}
)
UNUSED: Final = {
    "imagePullPolicy": "images lie here",
    "imagePullSecrets": "images lie here",
    "resources": "nothing is limited",
    "automountServiceAccountToken": "there is no API server",
    "serviceAccountName": "there is no API server",
    "enableServiceLinks": "nothing is linked",
    "topologySpreadConstraints": "pods of a kind go to the node with the fewest of them",
    "nodeSelector": "nodes are alike",
    "tolerations": "nodes are alike",
}
GRACE_S: Final = 30


class UnknownField(Exception):
    """The manifests say what this kubelet does not do."""


def check(pod: Manifest) -> None:
    """Raises UnknownField."""
    strange = pod.keys() - POD - UNUSED.keys()
    for each in (*pod["containers"], *pod.get("initContainers", ())):
        strange |= each.keys() - CONTAINER - UNUSED.keys()
    if strange:
        raise UnknownField(f"this kubelet does not know {', '.join(sorted(strange))}")


def expand(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` of what stands before; `$$(NAME)` and unknown names stay as they are."""

    def value(match: re.Match[str]) -> str:
        if match[0].startswith("$$"):
            return match[0][1:]
        return env.get(match[1], match[0])

    return re.sub(r"\$?\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)", value, text)


def environment(
    container: Manifest, fields: Mapping[str, str], secrets: Mapping[str, Mapping[str, bytes]]
) -> dict[str, str]:
    """`fields`: the pod's own, by their paths (`status.podIP`)."""
    env: dict[str, str] = {}
    for each in container.get("env", ()):
        source = each.get("valueFrom", {})
        if "fieldRef" in source:
            env[each["name"]] = fields[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            env[each["name"]] = secrets[reference["name"]][reference["key"]].decode()
        elif source:
            raise UnknownField(f"this kubelet does not know a value from {', '.join(source)}")
        else:
            env[each["name"]] = expand(str(each.get("value", "")), env)
    return env


def container_spec(
    container: Manifest, pod: Manifest, image: Image, env: Mapping[str, str], volumes: Mapping[str, Path]
) -> ContainerSpec:
    """What the runtime is to run. Raises UnknownField, and ValueError for a container with rights."""
    security = pod.get("securityContext", {}) | container.get("securityContext", {})
    user, _, group = image.user.partition(":")
    uid, gid = int(security.get("runAsUser", user)), int(security.get("runAsGroup", group or 0))
    if security.get("runAsNonRoot") and uid == 0:
        raise ValueError(f"{container['name']}: runAsNonRoot, and its user is root")
    if security.get("capabilities", {}).get("drop") != ["ALL"] or security.get("allowPrivilegeEscalation", True):
        raise ValueError(f"{container['name']}: this kubelet runs containers without rights alone")
    own = {**image.env, **env}
    command = list(container.get("command") or image.entrypoint)
    arguments = list(container.get("args") or ([] if container.get("command") else image.cmd))
    mounts = tuple(
        Mount(volumes[each["name"]], each["mountPath"], writable=not each.get("readOnly", False))
        for each in container.get("volumeMounts", ())
    )
    groups = (int(security["fsGroup"]),) if "fsGroup" in security else ()
    words = [expand(word, own) for word in (*command, *arguments)]
    read_only = bool(security.get("readOnlyRootFilesystem", False))
    return ContainerSpec(
        container["name"], words, own, mounts, uid, gid, groups, read_only, container.get("workingDir", "")
    )


def fill(
    pod: Manifest,
    folder: Path,
    *,
    secrets: Mapping[str, Mapping[str, bytes]],
    maps: Mapping[str, Mapping[str, str]],
    claim: Callable[[str], Path],
) -> dict[str, Path]:
    """Makes the pod's volumes; returns where they are. Those in memory lie in /dev/shm, beside `folder`'s name."""
    group = int(pod.get("securityContext", {}).get("fsGroup", -1))
    memory = Path("/dev/shm") / folder.name
    made: dict[str, Path] = {}
    for volume in pod.get("volumes", ()):
        name = volume["name"]
        place = made[name] = (
            (memory if volume.get("emptyDir", {}).get("medium") == "Memory" else folder) / name
            if "persistentVolumeClaim" not in volume
            else claim(volume["persistentVolumeClaim"]["claimName"])
        )
        if "persistentVolumeClaim" in volume:
            continue
        place.mkdir(parents=True)
        if "emptyDir" in volume:
            _give(place, group)
            continue
        for path, (body, mode) in files_of(volume, secrets, maps).items():
            (place / path).write_bytes(body)
            os.chown(place / path, 0, max(group, 0))
            (place / path).chmod(mode)
        place.chmod(0o755)
    return made


def files_of(
    volume: Manifest, secrets: Mapping[str, Mapping[str, bytes]], maps: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[bytes, int]]:
    """The files of a volume of Secrets and ConfigMaps, with their modes."""
    found: dict[str, tuple[bytes, int]] = {}
    sources = [volume]
    mode = (volume.get("secret") or volume.get("configMap") or {}).get("defaultMode", 0o644)
    if "projected" in volume:
        sources, mode = volume["projected"]["sources"], volume["projected"].get("defaultMode", 0o644)
    for source in sources:
        if "secret" in source:
            of: Mapping[str, bytes] = secrets[source["secret"].get("name") or source["secret"]["secretName"]]
            items = source["secret"].get("items")
        elif "configMap" in source:
            of = {key: text.encode() for key, text in maps[source["configMap"]["name"]].items()}
            items = source["configMap"].get("items")
        else:
            raise UnknownField(f"this kubelet does not know a volume of {', '.join(source.keys() - {'name'})}")
        for each in items or [{"key": key, "path": key} for key in of]:
            found[each["path"]] = (of[each["key"]], mode)
    return found


def claimed(place: Path, pod: Manifest) -> Path:
    """A persistent volume, made at its first use."""
    if not place.exists():
        place.mkdir(parents=True)
        _give(place, int(pod.get("securityContext", {}).get("fsGroup", -1)))
    return place


def empty(folder: Path) -> None:
    """Takes the volumes of a pod away."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(Path("/dev/shm") / folder.name, ignore_errors=True)


def _give(place: Path, group: int) -> None:
    if group >= 0:
        os.chown(place, 0, group)
        place.chmod(0o2775)
    else:
        place.chmod(0o777)


def whole(value: int | str, of: int, *, up: bool) -> int:
    """A number of pods: as it is, or a part (`25%`)."""
    if isinstance(value, int):
        return value
    part = int(value.removesuffix("%")) * of
    return -(-part // 100) if up else part // 100
