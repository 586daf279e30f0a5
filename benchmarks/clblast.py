"""This module calls CLBlast's convolution through ctypes, so that conv2d_opencl.py can time it. Start at `ClBlast`.

It declares just enough of the C interfaces of OpenCL and CLBlast.
"""

from __future__ import annotations

import ctypes
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_ulong, c_void_p
from ctypes.util import find_library
from typing import Any

import numpy as np

from templates.workloads import Conv2d

_CROSS_CORRELATION = 151
_PROFILING = 2
_READ_WRITE, _COPY = 1, 32

_ALL_TYPES = 0xFFFFFFFF


def available() -> bool:
    return find_library("clblast") is not None


class ClBlast:
    """A convolution that runs on the first device of a driver.

    `driver` is the path of the driver's library or of the ICD loader.
    """

    def __init__(self, driver: str, conv: Conv2d, data: np.ndarray, weight: np.ndarray) -> None:
        self._cl = ctypes.CDLL(driver, mode=ctypes.RTLD_GLOBAL)
        self._blast = ctypes.CDLL(find_library("clblast"))
        self._conv = conv
        platform, device = c_void_p(), c_void_p()
        self._check(self._cl.clGetPlatformIDs(1, byref(platform), None))
        self._check(self._cl.clGetDeviceIDs(platform, c_ulong(_ALL_TYPES), 1, byref(device), None))
        self._context = self._created("clCreateContext", None, 1, byref(device), None, None)
        self._queue = self._created("clCreateCommandQueue", self._context, device, c_ulong(_PROFILING))
        self._data, self._weight = self._buffer(data), self._buffer(weight)
        self._out_array = np.zeros(conv.out_shape, np.float32)
        self._out = self._buffer(self._out_array)

    def _check(self, status: int) -> None:
        if status:
            raise RuntimeError(f"OpenCL or CLBlast failed with status {status}")

    def _created(self, name: str, *arguments: Any) -> c_void_p:
        function, status = getattr(self._cl, name), c_int()
        function.restype = c_void_p
        made = c_void_p(function(*arguments, byref(status)))
        self._check(status.value)
        return made

    def _buffer(self, array: np.ndarray) -> c_void_p:
        flags, pointer = c_ulong(_READ_WRITE | _COPY), array.ctypes.data_as(c_void_p)
        return self._created("clCreateBuffer", self._context, flags, c_size_t(array.nbytes), pointer)

    def seconds(self) -> float:
        """Return the seconds of one call by the host's clock.

        A call launches several kernels, and the event that it returns belongs to the last one only.
        """

        c, event = self._conv, c_void_p()
        sizes = (c.in_channels, c.height, c.width, *c.kernel, *c.padding[:2], *c.strides, *c.dilation)
        counts = [c_size_t(n) for n in (*sizes, c.out_channels, c.batch)]
        buffers = [self._data, c_size_t(0), self._weight, c_size_t(0), self._out, c_size_t(0)]
        start = time.perf_counter()
        status = self._blast.CLBlastSconvgemm(
            c_int(_CROSS_CORRELATION), *counts, *buffers, byref(self._queue), byref(event)
        )
        self._check(status)
        self._check(self._cl.clFinish(self._queue))
        return time.perf_counter() - start

    def result(self) -> np.ndarray:
        pointer = self._out_array.ctypes.data_as(c_void_p)
        self._check(
            self._cl.clEnqueueReadBuffer(
                self._queue, self._out, c_uint(1), c_size_t(0), c_size_t(self._out_array.nbytes), pointer, 0, None, None
            )
        )
        return self._out_array
