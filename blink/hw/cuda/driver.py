"""The CUDA driver API as this backend uses it: one class over cuda.bindings, imported when a GPU is asked for.

Addresses and handles are plain integers. Every call that fails raises CudaError with the driver's name for it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from blink.common.errors import InputError

INSTALL = "pip install 'blink-twin[cuda]'"
_DEVICE_LAUNCH = 4  # CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_MAPPED = 1 | 2  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP; the same bits for memory that is registered
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NOT_READY = "CUDA_ERROR_NOT_READY"


class CudaError(RuntimeError):
    """A call of the driver API failed."""


def _bindings() -> Any:
    """The bindings of the driver API. Raises InputError that says what to install."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise InputError(f"backend cuda: needs the Python package cuda-bindings; install it with {INSTALL}") from None
    return driver


@lru_cache
def open_cuda() -> Cuda:
    """The first GPU with its primary context, shared with PyTorch. Raises InputError if there is none."""
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # a persistent kernel never lets a lazy load happen
    return Cuda(_bindings())


class Cuda:
    """The device, its memory, streams, modules and graphs."""

    def __init__(self, bindings: Any) -> None:
        self._api = bindings
        try:
            code = bindings.cuInit(0)[0]
        except RuntimeError as error:  # the bindings cannot load libcuda
            raise InputError(
                f"backend cuda: needs an NVIDIA GPU with its driver; this machine has none ({error})"
            ) from None
        if int(code):
            raise InputError(f"backend cuda: needs an NVIDIA GPU; cuInit says {code.name}")
        self._device = self._call("cuDeviceGet", 0)
        major, minor = self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR")
        if major < 9:
            raise InputError(
                f"backend cuda: the GPU's compute capability {major}.{minor} is not supported; allowed: 9.0 and newer"
            )
        self.arch = f"sm_{major}{minor}"
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._call("cuCtxSetCurrent", self._context)

    def _call(self, name: str, *arguments: Any) -> Any:
        code, *results = getattr(self._api, name)(*arguments)
        if int(code):
            raise CudaError(f"{name}: {code.name}")
        return results[0] if len(results) == 1 else tuple(results)

    # --- the device ---

    def attribute(self, name: str) -> int:
        """A device attribute by the end of its CU_DEVICE_ATTRIBUTE_ name."""
        attribute = getattr(self._api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", attribute, self._device))

    def describe(self) -> dict[str, str]:
        """Name of the GPU and versions of the driver API and of the bindings' CUDA, for reports."""
        name = bytes(self._call("cuDeviceGetName", 128, self._device)).split(b"\0")[0].decode()
        version = int(self._call("cuDriverGetVersion"))
        found = {"gpu": name, "arch": self.arch, "cuda_driver_api": f"{version // 1000}.{version % 1000 // 10}"}
        kernel_module = Path("/proc/driver/nvidia/version")
        if kernel_module.is_file():
            words = kernel_module.read_text().split()
            found["driver"] = next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), "")
        return found

    def enter(self) -> None:
        """Make the context current in the calling thread."""
        self._call("cuCtxSetCurrent", self._context)

    def synchronize(self) -> None:
        """Wait for everything on the device. Never call it while a scheduler runs."""
        self._call("cuCtxSynchronize")

    @property
    def context(self) -> int:
        """The handle of the primary context."""
        return int(self._context)

    # --- memory ---

    def allocate(self, size_bytes: int) -> int:
        """The address of zeroed device memory."""
        address = int(self._call("cuMemAlloc", size_bytes))
        self._call("cuMemsetD8", address, 0, size_bytes)
        self.synchronize()
        return address

    def free(self, address: int) -> None:
        """Give device memory back."""
        self._call("cuMemFree", address)

    def allocate_pinned(self, size_bytes: int) -> int:
        """The address of zeroed host memory that the device has mapped at the same address."""
        address = int(self._call("cuMemHostAlloc", size_bytes, _MAPPED))
        ctypes.memset(address, 0, size_bytes)
        if int(self._call("cuMemHostGetDevicePointer", address, 0)) != address:
            raise CudaError("mapped host memory has another address on the device: unified addressing is missing")
        return address

    def free_pinned(self, address: int) -> None:
        """Give pinned memory back."""
        self._call("cuMemFreeHost", address)

    def register(self, address: int, size_bytes: int) -> int:
        """Pin whole pages of this process's memory and map them; their address on the device."""
        self._call("cuMemHostRegister", address, size_bytes, _MAPPED)
        return int(self._call("cuMemHostGetDevicePointer", address, 0))

    def dma_buf(self, address: int, size_bytes: int) -> int:
        """A file descriptor by which another device reaches whole pages of device memory; for os.close."""
        kind = self._api.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
        return int(self._call("cuMemGetHandleForAddressRange", address, size_bytes, kind, 0))

    def unregister(self, address: int) -> None:
        """Unpin what was registered there."""
        self._call("cuMemHostUnregister", address)

    def copy_in(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Host to device, in the order of the stream; `source` must be pinned for it to be asynchronous."""
        self._call("cuMemcpyHtoDAsync", target, source, size_bytes, stream)

    def copy_out(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Device to host, in the order of the stream."""
        self._call("cuMemcpyDtoHAsync", target, source, size_bytes, stream)

    # --- streams ---

    def stream(self) -> int:
        """A stream that waits for no other."""
        return int(self._call("cuStreamCreate", _NON_BLOCKING))

    def close_stream(self, stream: int) -> None:
        """Give it back."""
        self._call("cuStreamDestroy", stream)

    def wait(self, stream: int) -> None:
        """Until everything on the stream is done."""
        self._call("cuStreamSynchronize", stream)

    def is_done(self, stream: int) -> bool:
        """Whether everything on the stream is done."""
        code = self._api.cuStreamQuery(stream)[0]
        if code.name == _NOT_READY:
            return False
        if int(code):
            raise CudaError(f"cuStreamQuery: {code.name}")
        return True

    def time_ns(self, stream: int, work: Callable[[], None]) -> int:
        """How long the device takes for what `work` puts on the stream, by two events (resolution about 500 ns)."""
        first, last = self._call("cuEventCreate", 0), self._call("cuEventCreate", 0)
        self._call("cuEventRecord", first, stream)
        work()
        self._call("cuEventRecord", last, stream)
        self._call("cuEventSynchronize", last)
        elapsed_ms = float(self._call("cuEventElapsedTime", first, last))
        self._call("cuEventDestroy", first)
        self._call("cuEventDestroy", last)
        return round(elapsed_ms * 1e6)

    # --- kernels ---

    def load(self, cubin: Path) -> int:
        """A module."""
        return int(self._call("cuModuleLoadData", cubin.read_bytes()))

    def unload(self, module: int) -> None:
        """Give it back."""
        self._call("cuModuleUnload", self._api.CUmodule(module))

    def function(self, module: int, name: str) -> int:
        """A kernel of a module."""
        return int(self._call("cuModuleGetFunction", self._api.CUmodule(module), name.encode()))

    def launch(self, function: int, grid: int, block: int, stream: int, *arguments: Any) -> None:
        """Launch a kernel; arguments are ctypes values and structures in the kernel's order."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        self._call(
            "cuLaunchKernel", self._api.CUfunction(function), grid, 1, 1, block, 1, 1, 0, stream,
            ctypes.addressof(pointers), 0,
        )  # fmt: skip

    # --- graphs ---

    @contextmanager
    def capturing(self, stream: int) -> Iterator[list[int]]:
        """What is launched on the stream becomes a graph, whose address is in the list afterwards."""
        captured: list[int] = []
        self._call("cuStreamBeginCapture", stream, self._api.CUstreamCaptureMode(_RELAXED))
        yield captured
        captured.append(int(self._call("cuStreamEndCapture", stream)))

    def instantiate(self, graph: int) -> int:
        """An executable that can be launched from the device and from the host."""
        parameters = self._api.CUDA_GRAPH_INSTANTIATE_PARAMS()
        parameters.flags = _DEVICE_LAUNCH
        code, *results = self._api.cuGraphInstantiateWithParams(self._api.CUgraph(graph), parameters)
        if int(code):
            raise CudaError(f"cuGraphInstantiateWithParams: {code.name}, result {parameters.result_out}")
        return int(results[0])

    def upload(self, executable: int, stream: int) -> None:
        """Put an executable's resources on the device; needed before a launch from the device."""
        self._call("cuGraphUpload", self._api.CUgraphExec(executable), stream)

    def launch_graph(self, executable: int, stream: int) -> None:
        """Launch from the host."""
        self._call("cuGraphLaunch", self._api.CUgraphExec(executable), stream)

    def node_count(self, graph: int) -> int:
        """Nodes of a graph."""
        return int(self._call("cuGraphGetNodes", self._api.CUgraph(graph), 0)[-1])

    def close_executable(self, executable: int) -> None:
        """Give it back."""
        self._call("cuGraphExecDestroy", self._api.CUgraphExec(executable))

    def close_graph(self, graph: int) -> None:
        """Give it back."""
        self._call("cuGraphDestroy", self._api.CUgraph(graph))


@lru_cache
def host_entry(name: str) -> int:
    """The address of a function of libcuda, for code of the host that calls it without Python."""
    library = ctypes.CDLL("libcuda.so.1")
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
