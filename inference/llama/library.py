"""Calls llama.cpp's C interface, for what its server and xllamacpp's Python interface do not offer.

Structures of parameters are passed by value and have other fields in other builds. Only fields whose places are known
for this build are set; defaults that stand elsewhere than expected are a refusal.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Final

import xllamacpp

_GPU_LAYERS_AT: Final = 16  # in llama_model_params; -1 by default
_VOCABULARY_ONLY_AT: Final = 72  # a flag, followed by one more that is off and one that is on


class UnknownBuild(Exception):
    """This build of llama.cpp lacks a function, or has fields in other places than expected."""


class ParameterBlock(ctypes.Structure):
    """A structure that llama.cpp's functions return and take by value, with room for larger versions of it."""

    _fields_ = (("bytes", ctypes.c_uint8 * 1024),)


Signatures = dict[str, tuple[Any, tuple[Any, ...]]]

_MODELS: Final[Signatures] = {
    "llama_model_default_params": (ParameterBlock, ()),
    "llama_model_load_from_file": (ctypes.c_void_p, (ctypes.c_char_p, ParameterBlock)),
    "llama_model_free": (None, (ctypes.c_void_p,)),
}


def open_library(signatures: Signatures) -> Any:
    """Returns the library with the functions of `signatures`, and those that load and free a model. Raises
    UnknownBuild."""
    library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    for name, (result, arguments) in (_MODELS | signatures).items():
        try:
            function = getattr(library, name)
        except AttributeError as exc:
            raise UnknownBuild(name) from exc
        function.restype, function.argtypes = result, arguments
    return library


def model_parameters(library: Any, *, vocabulary_only: bool = False) -> ParameterBlock:
    """Returns the parameters that load a model on the CPU. Raises UnknownBuild."""
    parameters: ParameterBlock = library.llama_model_default_params()
    if struct.unpack_from("<i", parameters.bytes, _GPU_LAYERS_AT) != (-1,):
        raise UnknownBuild("llama_model_params")
    struct.pack_into("<i", parameters.bytes, _GPU_LAYERS_AT, 0)
    if vocabulary_only:
        if struct.unpack_from("<???", parameters.bytes, _VOCABULARY_ONLY_AT) != (False, False, True):
            raise UnknownBuild("llama_model_params")
        struct.pack_into("<?", parameters.bytes, _VOCABULARY_ONLY_AT, True)
    return parameters
