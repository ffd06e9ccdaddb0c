"""The C structures by which libQnnSystem describes a context binary, as QnnTypes.h and QnnSystemContext.h of
QAIRT 2.43 have them; later releases append to them."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, Union, c_char_p, c_float, c_int32, c_uint32, c_uint64, c_void_p

DEFINED = 1
"""A quantisation that is there."""

SCALE_OFFSET = 0
"""The encoding of one scale and one offset: real = (stored + offset) * scale."""


class Version(Structure):
    _fields_ = (("major", c_uint32), ("minor", c_uint32), ("patch", c_uint32))


class ScaleOffset(Structure):
    _fields_ = (("scale", c_float), ("offset", c_int32))


class Params(Union):
    # The largest members are five words of eight bytes, of which only the first kind is read.
    _fields_ = (("scale_offset", ScaleOffset), ("room", c_uint64 * 4))


class Quantisation(Structure):
    _fields_ = (("defined", c_uint32), ("encoding", c_uint32), ("params", Params))


class TensorV2(Structure):
    # Version 1 is its beginning.
    _fields_ = (
        ("id", c_uint32),
        ("name", c_char_p),
        ("kind", c_uint32),
        ("format", c_uint32),
        ("dtype", c_uint32),
        ("quantisation", Quantisation),
        ("rank", c_uint32),
        ("dimensions", POINTER(c_uint32)),
        ("memory", c_uint32),
        ("buffer", c_uint64 * 2),
        ("dynamic", c_void_p),
        ("sparse", c_uint32 * 3),
        ("produced", ctypes.c_uint8),
    )


class Tensor(Structure):
    _fields_ = (("version", c_uint32), ("body", TensorV2))


class GraphV3(Structure):
    # Versions 1 and 2 are its beginning.
    _fields_ = (
        ("name", c_char_p),
        ("inputs_count", c_uint32),
        ("inputs", POINTER(Tensor)),
        ("outputs_count", c_uint32),
        ("outputs", POINTER(Tensor)),
        ("updateable_count", c_uint32),
        ("updateable", c_void_p),
        ("blob_size", c_uint32),
        ("blob", c_void_p),
        ("first_op", c_uint32),
        ("last_op", c_uint32),
    )


class Graph(Structure):
    _fields_ = (("version", c_uint32), ("body", GraphV3))


class InfoV2(Structure):
    # Version 1 is its beginning.
    _fields_ = (
        ("backend", c_uint32),
        ("build", c_char_p),
        ("core_api", Version),
        ("backend_api", Version),
        ("soc", c_char_p),
        ("hardware_version", Version),
        ("blob_version", Version),
        ("hardware_size", c_uint32),
        ("hardware", c_void_p),
        ("blob_size", c_uint64),
        ("tensors_count", c_uint32),
        ("tensors", c_void_p),
        ("graphs_count", c_uint32),
        ("graphs", POINTER(Graph)),
        ("platform", c_void_p),
    )


class InfoV3(Structure):
    _fields_ = (
        ("backend", c_uint32),
        ("build", c_char_p),
        ("core_api", Version),
        ("backend_api", Version),
        ("soc", c_char_p),
        ("blob_version", Version),
        ("blob_size", c_uint64),
        ("tensors_count", c_uint32),
        ("tensors", c_void_p),
        ("graphs_count", c_uint32),
        ("graphs", POINTER(Graph)),
        ("platform", c_void_p),
        ("metadata_size", c_uint32),
        ("metadata", c_void_p),
        ("soc_model", c_uint32),
    )


class Bodies(Union):
    _fields_ = (("v2", InfoV2), ("v3", InfoV3))


class BinaryInfo(Structure):
    _fields_ = (("version", c_uint32), ("bodies", Bodies))


class Functions(Structure):
    # The beginning of the table of functions.
    _fields_ = (
        ("create", c_void_p),
        ("get_binary_info", c_void_p),
        ("get_metadata", c_void_p),
        ("free", c_void_p),
    )


class Interface(Structure):
    _fields_ = (("backend", c_uint32), ("name", c_char_p), ("api", Version), ("functions", Functions))
