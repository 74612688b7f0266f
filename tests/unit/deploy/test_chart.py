"""The chart: what it renders is valid, says what the processes take, and refuses wrong values with a sentence."""

from __future__ import annotations

import random
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from actors.handoff.drain import DrainLimits
from deploy import chart_schema
from sessions.metrics import Metrics
from tests.support.documented_commands import fences
from tests.support.kubernetes.manifests import (
    CHART,
    ROOT,
    VERSIONS,
    Manifest,
    RefusedValues,
    of_kind,
    over,
    pods,
    problems,
    render,
)
from transport.cli.commands import VERSION, Parsed, RunGateway, RunReplica, parse
from transport.cli.settings import read_settings
from transport.ops.metrics_server import MetricsServer
from transport.ops.prometheus import MetricsExposition


def generated(rng: random.Random) -> dict[str, Any]:
    """Values as people write them: right, and in every other case with something that may be wrong here and there."""
    sloppy = rng.random() < 0.5

    def some(*right: Any, wrong: tuple[Any, ...] = ()) -> Any:
        return rng.choice(wrong if wrong and sloppy and rng.random() < 0.1 else right)

    def pool() -> dict[str, Any]:
        vllm = {
            "engine": "vllm",
            "variant": some("cuda", wrong=("cpu",)),
            "multiNode": {"size": some(1, 2, wrong=(0,))},
        }
        values: dict[str, Any] = {
            "replicas": some(0, 1, 7, wrong=("2", -1)),
            "slots": some(1, 32, 4096, wrong=(0, 2.5)),
            "kv": {
                "diskMb": some(0, 400, wrong=(10**7,)),
                "volumeSize": some("20Gi", "1Ti", "500M", wrong=("10", "10 GB")),
                "memoryMb": some(9, 5000, wrong=(0,)),
                "keepVolumes": some(True, False),
            },
            "autoscaling": {
                "enabled": some(True, False),
                "min": some(1, 3, wrong=(10,)),
                "max": some(4, 9),
                "busySlots": 1,
            },
            "settings": some(
                {}, {"idle_s": 60}, {"titles": "off"}, {"context": 8192}, wrong=({"idle": 60}, {"port": 1})
            ),
            "tolerations": some([], [{"operator": "Exists"}], wrong=({},)),
            "extraEnv": some([], [{"name": "A", "value": "b"}], wrong=([{"name": "SESSILE_DATA", "value": "/x"}],)),
        }
        kind: dict[str, Any] = some({}, {"engine": "sim"}, {"modelVolume": "models", "model": "/models/a.gguf"}, vllm)
        chosen = {name: values[name] for name in values if rng.random() < 0.4}
        return {"model": some("hf:acme/chat", "smollm2-135m", wrong=("", "/models/x.gguf"))} | kind | chosen

    values: dict[str, Any] = {
        "peers": some({"insecure": True}, {"tlsSecret": "tls", "serverName": "s"}, wrong=({}, {"tlsSecret": "tls"})),
        "gateway": {"replicas": some(1, 5), "grpc": some(True, False), "port": some(8080, 9000, wrong=(80, "http"))},
        "pools": {some("main", "a", "chat-8b", wrong=("UPPER",)): pool() for _ in range(rng.randint(1, 3))},
        "networkPolicy": {"enabled": some(True, False), "clients": some([], [{"podSelector": {}}])},
        "httpRoute": some({}, {"enabled": True, "parentRefs": [{"name": "edge"}]}, wrong=({"enabled": True},)),
        "monitoring": {
            "serviceMonitor": some(True, False),
            "rules": some(True, False),
            "prometheusUrl": "http://p:9090",
        },
        "bundled": {"valkey": {"enabled": some(True, False)}, "postgres": {"enabled": some(True, False)}},
        "ipv6": some(True, False),
        "image": {"tag": some("", "1.0", wrong=(1,))},
    }
    return {name: values[name] for name in values if name in ("peers", "pools", "monitoring") or rng.random() < 0.5}


def is_sentence(message: str) -> bool:
    """Whether a refusal names the value, or says what to do; a failure inside a template does neither."""
    names = (
        "- at '" in message or re.search(r"execution error at \([^)]*\): (peers|pools|httpRoute)", message) is not None
    )
    return names and "nil pointer" not in message and "wrong type" not in message


ROUNDS = 120
PLAIN = {"peers": {"insecure": True}}
EVERYTHING: dict[str, Any] = {
    "image": {"repository": "images.example/sessile", "tag": "1.2.3", "pullSecrets": ["pull"]},
    "secret": {
        "keys": {
            "auditKey": "audit-key",
            "apiKeys": "api-keys",
            "keyServiceToken": "vault",
            "kvRedis": "kv-redis",
            "oidcClientSecret": "oidc",
            "usageStream": "usage",
            "otlp": "otlp",
            "huggingFaceToken": "hub",
        }
    },
    "peers": {"tlsSecret": "peer-tls", "serverName": "peers.sessile.internal"},
    "serviceAccount": "sessile",
    "gateway": {
        "grpc": True,
        "tlsSecret": "door-tls",
        "files": "gateway-files",
        "replicas": 3,
        "settings": {
            "unknown_parameters": "ignore",
            "origins": ["https://a.example", "https://b.example"],
            "unauthenticated_per_address": 1_000_000,
            "limits": "/etc/sessile/limits.toml",
        },
        "nodeSelector": {"pool": "edge"},
        "tolerations": [{"key": "edge", "operator": "Exists"}],
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    },
    "pools": {
        "main": {
            "model": "/models/chat.gguf",
            "modelVolume": "models",
            "files": "replica-files",
            "replicas": 0,
            "kv": {"keepVolumes": False, "storageClass": "fast", "diskMb": 0},
            "settings": {"idle_s": 300, "titles": "off", "content_bytes": 1_000_000, "retention_days": 0.5},
            "autoscaling": {"enabled": True, "min": 1, "max": 8},
        },
        "large": {
            "model": "hf:acme/large",
            "engine": "vllm",
            "variant": "cuda",
            "runtimeClassName": "nvidia",
            "settings": {"vllm_args": {"tensor_parallel_size": 2}},
            "resources": {"limits": {"nvidia.com/gpu": 2}},
        },
        "huge": {
            "model": "hf:acme/huge",
            "engine": "vllm",
            "variant": "cuda",
            "multiNode": {"size": 2},
            "autoscaling": {"enabled": True},
        },
    },
    "networkPolicy": {
        "clients": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
        "monitoring": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "egress": [{"ports": [{"port": 4318}]}],
    },
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "edge"}], "hostnames": ["chat.example"]},
    "monitoring": {
        "serviceMonitor": True,
        "rules": True,
        "dashboard": True,
        "labels": {"release": "prometheus"},
        "prometheusUrl": "http://prometheus.monitoring:9090",
    },
    "bundled": {"valkey": {"enabled": True}, "postgres": {"enabled": True}},
}


@pytest.fixture(scope="module", params=["plain", "everything"])
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return render(PLAIN if request.param == "plain" else EVERYTHING)


@pytest.fixture(scope="module")
def everything() -> list[Manifest]:
    return render(EVERYTHING)


def of_name(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = (each for each in of_kind(manifests, kind) if each["metadata"]["name"] == name)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_what_kubernetes_takes(manifests: list[Manifest], version: str) -> None:
    assert [problem for each in manifests for problem in problems(each, version)] == []


def test_a_wrong_object_is_noticed(everything: list[Manifest]) -> None:
    for kind, path in (
        ("Deployment", "spec/template/spec/containers"),
        ("ScaledObject", "spec"),
        ("HTTPRoute", "spec"),
        ("ServiceMonitor", "spec/endpoints"),
        ("PrometheusRule", "spec/groups"),
        ("LeaderWorkerSet", "spec/leaderWorkerTemplate/workerTemplate/spec"),
    ):
        text = yaml.safe_load(yaml.safe_dump(of_kind(everything, kind)[0]))
        inside = text
        for step in path.split("/"):
            inside = inside[step]
        (inside[0] if isinstance(inside, list) else inside)["mispelt"] = 1
        assert len(problems(text)) == 1, kind


def test_it_has_what_it_promises(everything: list[Manifest]) -> None:
    kinds = {each["kind"] for each in everything}
    assert kinds >= {
        "Deployment",
        "StatefulSet",
        "LeaderWorkerSet",
        "PodDisruptionBudget",
        "NetworkPolicy",
        "HTTPRoute",
    }
    assert kinds >= {"ServiceMonitor", "PrometheusRule", "ScaledObject", "Service", "ConfigMap"}
    assert "Secret" not in kinds, "secrets are named, never held"
    assert len({(each["kind"], each["metadata"]["name"]) for each in everything}) == len(everything)
    for each in of_kind(everything, "StatefulSet"):
        assert len(each["metadata"]["name"]) <= 52


def test_secrets_and_tokens_are_in_no_manifest(everything: list[Manifest]) -> None:
    for name, pod in pods(everything):
        assert pod["automountServiceAccountToken"] is False, name
        for container in pod["containers"]:
            for variable in container.get("env", ()):
                given = str(variable.get("value", ""))
                if given.startswith("/run/"):
                    continue  # the name of a file
                assert "@" not in given and not re.search("(?i)password|secret|token", given)


def test_pods_have_no_rights(manifests: list[Manifest]) -> None:
    for name, pod in pods(manifests):
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"], name
        for container in [*pod["containers"], *pod.get("initContainers", ())]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"], name
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"] or "nvidia.com/gpu" in container["resources"]["limits"]


def ours(manifests: list[Manifest]) -> list[tuple[str, Manifest, Manifest]]:
    """(name, pod, container) of gateways and replicas."""
    return [
        (name, pod, container)
        for name, pod in pods(manifests)
        for container in pod["containers"]
        if container["name"] in ("gateway", "replica")
    ]


SECRETS = {
    "directory": "redis://:pass@valkey:6379",
    "journal": "postgresql://sessile:pass@postgres/sessile",
    "kvRedis": "redis://:pass@valkey:6379/1",
    "usageStream": "redis://:pass@valkey:6379/0?stream=usage",
}


def environment(container: Manifest, folder: Path) -> dict[str, str]:
    """Its SESSILE_* variables as the process sees them, with the files of secrets in a folder of ours."""
    found: dict[str, str] = {}
    for variable in container["env"]:
        value = variable.get("value", "pod-0" if variable["name"] != "POD_IP" else "10.1.2.3")
        value = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], value)
        if value.startswith("/run/sessile/"):
            name = value.rpartition("/")[2]
            (folder / name).write_text(SECRETS.get(name, "0" * 64))
            value = str(folder / name)
        found[variable["name"]] = value
    return {name: value for name, value in found.items() if name.startswith("SESSILE_")}


def command(container: Manifest) -> list[str]:
    """The arguments of ./sessile."""
    if "command" in container:
        assert container["command"][:2] == ["/bin/sh", "-c"]
        program, *arguments = shlex.split(container["command"][2].rpartition("exec ")[2])
        assert program == "/opt/sessile/sessile"
        return arguments
    return list(container["args"])


def parsed(arguments: list[str], container: Manifest, folder: Path) -> Parsed:
    found = parse(arguments, environment(container, folder), VERSION)
    assert found is not None
    return found


def test_every_setting_and_command_is_one_of_the_program(manifests: list[Manifest], tmp_path: Path) -> None:
    found = ours(manifests)
    assert len(found) >= 2
    for name, _, container in found:
        folder = tmp_path / name.replace("/", "-")
        folder.mkdir()
        start = parsed(command(container), container, folder)
        assert isinstance(start.options, RunGateway if container["name"] == "gateway" else RunReplica)
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert ports["metrics"] == start.settings.metrics_port and start.settings.metrics_host == "0.0.0.0"
        if container["name"] == "gateway":
            assert ports["http"] == start.settings.port and start.settings.host == "0.0.0.0"
            assert ports.get("grpc", -1) == start.settings.grpc_port and start.settings.auth == "keys"
        else:
            assert ports["peer"] == start.settings.peer_port
            assert start.settings.peer_address == f"10.1.2.3:{ports['peer']}"
            line = container["lifecycle"]["preStop"]["exec"]["command"][2].replace('"$SESSILE_NAME"', "pod-0")
            drain = parsed(shlex.split(line)[2:], container, folder)
            assert drain.settings == start.settings


def test_a_setting_keeps_its_value(everything: list[Manifest], tmp_path: Path) -> None:
    by_name = {name: container for name, _, container in ours(everything)}
    gateway = parsed(["gateway"], by_name["demo-sessile-gateway"], tmp_path).settings
    assert gateway.unauthenticated_per_address == 1_000_000 and gateway.origins == (
        "https://a.example",
        "https://b.example",
    )
    main = parsed(["replica"], by_name["demo-sessile-main"], tmp_path).settings
    assert (main.idle_s, main.titles, main.content_bytes, main.retention_days) == (300, "off", 1_000_000, 0.5)
    assert main.kv_disk_mb == 0, "a value of zero goes before the default"
    large = parsed(["replica"], by_name["demo-sessile-large"], tmp_path).settings
    assert large.vllm_args == '{"tensor_parallel_size":2}' and large.engine == "vllm"


def test_every_secret_that_is_named_is_mounted(everything: list[Manifest]) -> None:
    for name, pod, container in ours(everything):
        volumes = {each["name"]: each for each in pod["volumes"]}
        items = volumes["given"]["projected"]["sources"][0]["secret"]["items"]
        files = {f"/run/sessile/{item['path']}" for item in items}
        named = {each["value"] for each in container["env"] if each.get("value", "").startswith("/run/sessile/")}
        assert named == files, name
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        claims = {"data"}  # of the StatefulSet's own templates
        assert mounted <= volumes.keys() | claims
        (init,) = pod["initContainers"]
        assert {mount["name"] for mount in init["volumeMounts"]} == {"given", "secrets"}
        assert "given" not in mounted, "the process sees its own copies only"


def test_secrets_are_copied_so_that_the_process_takes_them(tmp_path: Path) -> None:
    """A mounted Secret is readable for its group, which the master key's reader refuses: the init container's command
    is run here, on folders of ours."""
    from persistence.master_key import read_master_keys

    (pod,) = (pod for name, pod in pods(render(PLAIN)) if name.endswith("gateway"))
    shell, flag, text = pod["initContainers"][0]["command"]
    given, own = tmp_path / "given", tmp_path / "own"
    given.mkdir()
    own.mkdir()
    (given / "masterKey").write_text("ab" * 32)
    (given / "masterKey").chmod(0o440)
    text = text.replace("/run/given", str(given)).replace("/run/sessile", str(own))
    subprocess.run([shell, flag, text], check=True)
    assert read_master_keys(own / "masterKey").newest.id


async def test_probes_look_where_the_process_answers_the_truth(manifests: list[Manifest]) -> None:
    reasons: list[str] = []
    exposition = MetricsExposition(Metrics(), version="1", role="gateway")
    server = MetricsServer(exposition, host="127.0.0.1", port=0, readiness=lambda: reasons[-1] if reasons else None)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            for _, _, container in ours(manifests):
                probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
                assert {each["port"] for each in probes.values()} == {"metrics"}
                for waiting, expected in ((False, 200), (True, 503)):
                    reasons[:] = ["waiting for the journal"] if waiting else []
                    codes = {name: (await client.get(each["path"])).status_code for name, each in probes.items()}
                    assert codes == {"startup": 200, "readiness": expected, "liveness": 200}
    finally:
        await server.stop()


def test_a_replica_has_an_hour_to_pull_its_model(manifests: list[Manifest]) -> None:
    """Its port for metrics listens when that is done."""
    for _, _, container in ours(manifests):
        probe = container["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] == (3600 if container["name"] == "replica" else 120)


def test_grace_is_longer_than_draining_takes(manifests: list[Manifest]) -> None:
    for _, pod, container in ours(manifests):
        if container["name"] == "replica":  # by preStop, and once more by the signal
            assert pod["terminationGracePeriodSeconds"] >= 2 * DrainLimits().drain_s + 15
        else:
            assert pod["terminationGracePeriodSeconds"] >= container["lifecycle"]["preStop"]["sleep"]["seconds"] + 15


def test_replicas_keep_their_names_and_start_together(everything: list[Manifest]) -> None:
    pool = of_name(everything, "StatefulSet", "demo-sessile-main")["spec"]
    assert pool["podManagementPolicy"] == "Parallel" and "replicas" not in pool, "KEDA counts them"
    assert pool["serviceName"] == of_name(everything, "Service", "demo-sessile-main")["metadata"]["name"]
    assert pool["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Delete"
    (claim,) = pool["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data" and claim["spec"]["storageClassName"] == "fast"
    variables = {each["name"]: each for each in pool["template"]["spec"]["containers"][0]["env"]}
    assert variables["SESSILE_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert variables["SESSILE_DATA"]["value"] == "/data"


def test_selectors_meet_pods(manifests: list[Manifest]) -> None:
    labels = [
        each["spec"]["template"]["metadata"]["labels"] for each in manifests if "template" in each.get("spec", {})
    ]
    labels += [
        each["spec"]["leaderWorkerTemplate"][part]["metadata"]["labels"]
        for each in of_kind(manifests, "LeaderWorkerSet")
        for part in ("leaderTemplate", "workerTemplate")
    ]
    for kind, path in (("Service", ["selector"]), ("PodDisruptionBudget", ["selector", "matchLabels"])):
        for each in of_kind(manifests, kind):
            selector = each["spec"]
            for step in path:
                selector = selector[step]
            assert any(selector.items() <= each_labels.items() for each_labels in labels), each["metadata"]["name"]
    for each in of_kind(manifests, "NetworkPolicy"):
        selector = each["spec"]["podSelector"]["matchLabels"]
        assert any(selector.items() <= each_labels.items() for each_labels in labels), each["metadata"]["name"]


def test_bundled_servers_are_reached_by_our_processes_alone(everything: list[Manifest]) -> None:
    for part in ("valkey", "postgres"):
        pod = of_name(everything, "StatefulSet", f"demo-sessile-{part}")["spec"]["template"]
        policy = of_name(everything, "NetworkPolicy", f"demo-sessile-{part}")["spec"]
        assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        (rule,) = policy["ingress"]
        (port,), (source,) = rule["ports"], rule["from"]
        assert port["port"] in {each["name"] for each in pod["spec"]["containers"][0]["ports"]}
        assert source["podSelector"]["matchExpressions"][0]["values"] == ["gateway", "replica"]
        assert policy["policyTypes"] == ["Ingress", "Egress"] and "egress" not in policy, "they go nowhere themselves"


def test_a_bundled_valkey_takes_any_password(everything: list[Manifest], tmp_path: Path) -> None:
    pod = of_name(everything, "StatefulSet", "demo-sessile-valkey")["spec"]["template"]["spec"]
    _, _, script = pod["containers"][0]["command"]
    for place in ("/run/given", "/run/own"):
        script = script.replace(place, str(tmp_path))
    (tmp_path / "password").write_text("a b\"c\\d#e'f\n")
    script = script.replace("exec valkey-server", "exec cat")
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == r"""requirepass "a b\"c\\d#e'f" """.strip()


def test_alert_rules_and_dashboard_are_the_same_as_without_kubernetes(everything: list[Manifest]) -> None:
    (rules,) = of_kind(everything, "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())
    (dashboard,) = of_kind(everything, "ConfigMap")
    text = (ROOT / "deploy" / "grafana" / "sessile.json").read_text()
    assert dashboard["data"]["sessile.json"].strip() == text.strip()
    (monitor,) = of_kind(everything, "ServiceMonitor")
    service = of_name(everything, "Service", "demo-sessile-metrics")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    job = service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    assert job == "sessile", "what the rules select by"


def test_scaling_goes_by_our_own_metrics(everything: list[Manifest]) -> None:
    (scaled,) = (
        each for each in of_kind(everything, "ScaledObject") if each["metadata"]["name"] == "demo-sessile-main"
    )
    assert scaled["spec"]["scaleTargetRef"]["kind"] == "StatefulSet"
    queries = {each["name"]: each["metadata"]["query"] for each in scaled["spec"]["triggers"]}
    assert queries.keys() == {"waiting", "busy", "refused", "first-token"}
    assert all('{namespace="chat",pod=~"demo-sessile-main-[0-9]+"}' in query for query in queries.values())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"peers": {"insecure": False}}, "name a Secret with certificates (peers.tlsSecret)"),
        ({"peers": {"insecure": False, "tlsSecret": "tls"}}, "peers.serverName: name the host"),
        ({"peers": {"tlsSecret": "tls", "serverName": "x"}}, "give one of tlsSecret and insecure"),
        ({"gateway": {"replicas": -1}}, "minimum: got -1, want 0"),
        ({"gateway": {"replicaz": 1}}, "additional properties 'replicaz' not allowed"),
        ({"gateway": {"settings": {"unknown_parameter": "ignore"}}}, "'unknown_parameter' not allowed"),
        ({"gateway": {"settings": {"unknown_parameters": "drop"}}}, "must be one of 'refuse', 'ignore'"),
        ({"gateway": {"settings": {"host": "0.0.0.0"}}}, "'host' not allowed"),
        ({"gateway": {"extraEnv": [{"name": "SESSILE_JOURNAL", "value": "x"}]}}, "/gateway/extraEnv/0/name"),
        ({"pools": {"main": {"settings": {"peer_token": "secret"}}}}, "'peer_token' not allowed"),
        ({"pools": {"main": {"settings": {"idle_s": 0}}}}, "exclusiveMinimum: got 0, want 0"),
        ({"pools": {"main": {"engine": "llamacpp"}}}, "must be one of 'llama', 'vllm', 'sim'"),
        ({"pools": {"main": {"engine": "vllm"}}}, "pools.main.variant: vLLM is in the image's variant cuda."),
        ({"pools": {"main": {"multiNode": {"size": 2}}}}, "only vLLM spreads a model over machines"),
        ({"pools": {"main": {"model": "/models/x.gguf"}}}, "pools.main.modelVolume: name the PersistentVolumeClaim"),
        ({"pools": {"main": {"kv": {"diskMb": 50_000}}}}, "diskMb is 50000, which does not fit"),
        ({"pools": {"main": {"kv": {"volumeSize": "20 GB"}}}}, "does not match pattern"),
        ({"pools": {"main": {"autoscaling": {"enabled": True}}}}, "name the Prometheus that it reads"),
        (
            {
                "pools": {"main": {"autoscaling": {"enabled": True, "min": 3, "max": 2}}},
                "monitoring": {"prometheusUrl": "http://p:9090"},
            },
            "min is 3 and max is 2; min must not be above max",
        ),
        ({"pools": {"Main": {"model": "x"}}}, "Main"),
        ({"pools": {"other": {}}}, "missing property 'model'"),
        ({"httpRoute": {"enabled": True}}, "name the Gateway that the route belongs to"),
        ({"secret": {"keys": {"journal": ""}}}, "minLength: got 0, want 1"),
    ],
)
def test_a_wrong_value_is_refused_with_a_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RefusedValues) as refused:
        render(over(PLAIN, values))
    assert sentence in str(refused.value)


@pytest.mark.slow
def test_generated_values_render_to_valid_manifests_or_are_refused(tmp_path: Path) -> None:
    rng, outcomes, unclear = random.Random(19), {"rendered": 0, "refused": 0}, []
    for number in range(ROUNDS):
        values = generated(rng)
        try:
            manifests = render(values)
        except RefusedValues as refused:
            outcomes["refused"] += 1
            if not is_sentence(str(refused)):
                unclear.append((values, str(refused)))
            continue
        outcomes["rendered"] += 1
        assert [problem for each in manifests for problem in problems(each)] == [], values
        for name, _, container in ours(manifests):
            folder = tmp_path / f"{number}-{name.replace('/', '-')}"
            folder.mkdir()
            read_settings({}, environment(container, folder), None)
    assert unclear == []
    assert min(outcomes.values()) >= ROUNDS // 6, outcomes


def test_values_in_the_documentation_render() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    bodies = [body for language, body in fences(page) if language == "yaml"]
    assert len(bodies) >= 2
    for body in bodies:
        assert [problem for each in render(yaml.safe_load(body)) for problem in problems(each)] == [], body


def test_the_schema_has_the_settings_of_the_program() -> None:
    again = "run `python deploy/chart_schema.py` and commit the chart's values.schema.json"
    assert chart_schema.SCHEMA.read_text() == chart_schema.schema_text(), again
    assert chart_schema.SCHEMA.parent == CHART


def test_the_chart_is_of_this_version() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == VERSION
