"""What of the server's environment vLLM's processes get: they run third-party libraries on what strangers wrote.

vLLM spawns its processes itself, and they inherit whatever this process has while it does: keys, passwords in the
addresses of stores, credentials of clouds. So everything else is put away while it starts, and put back behind it.
Secrets are never handed over, whatever their names begin with: the model lies in a folder and nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Final

NAMES: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TMP", "TEMP", "TZ", "LANG", "LANGUAGE", "TERM"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "CC", "CXX"),
    }
)
PREFIXES: Final = (
    *("LC_", "XDG_", "PYTHON", "MALLOC_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMEXPR_"),
    *("CUDA", "NVIDIA_", "NCCL_", "CUBLAS", "CUDNN", "ROCM", "ROCR_", "HIP_", "HSA_", "AMD_", "ZE_", "ONEAPI_"),
    *("VLLM_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "GLOO_", "UCX_"),
)
SECRET: Final = re.compile(r"TOKENS?$|(^|_)KEY|SECRET|PASSW|CREDENTIAL")


def is_handed_over(name: str) -> bool:
    return (name in NAMES or name.startswith(PREFIXES)) and SECRET.search(name) is None


@contextmanager
def only_handed_over(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Removes from `environment`, inside the block, all that no child process may inherit; what is set inside stays."""
    put_away = {name: environment.pop(name) for name in list(environment) if not is_handed_over(name)}
    try:
        yield
    finally:
        for name, value in put_away.items():
            environment.setdefault(name, value)
