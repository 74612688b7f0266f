"""Values of the chart as people write them, right and wrong, from a seed; and whether a refusal can be understood."""

from __future__ import annotations

import random
import re
from typing import Any


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
