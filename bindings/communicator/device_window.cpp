#include "bindings/communicator/device_window.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "accord/nccl.hpp"
#include "bindings/arguments/array.hpp"
#include "bindings/arguments/duration.hpp"
#include "bindings/arguments/integers.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {
namespace {

/// Exports the memory as bytes, which torch and CuPy can view as any dtype.
nb::object export_dlpack(nb::handle self, const nb::kwargs& options) {
  DeviceWindow& window = nb::cast<DeviceWindowHandle&>(self).use();
  const std::size_t extent = window.bytes();
  const nb::ndarray<nb::array_api> view(window.data(), 1, &extent, self, nullptr, dlpack_dtype(DType::kUInt8),
                                        nb::device::cuda::value, window.device().index);
  return nb::cast(view).attr("__dlpack__")(**options);
}

}  // namespace

DeviceWindowHandle device_window(CommunicatorHandle& self, nb::handle memory, int device, nb::handle timeout) {
  Communicator communicator = self.use();
  CallOptions options;
  options.timeout = duration_argument(timeout);
  // Arrays of NumPy and torch have __index__ as well.
  if (PyIndex_Check(memory.ptr()) && !nb::hasattr(memory, "__dlpack__")) {
    const std::size_t bytes = size_argument(memory, "memory", "a number of bytes");
    if (device < 0 || device > std::numeric_limits<std::int16_t>::max())
      raise_invalid("device: there is no GPU " + std::to_string(device));
    const Device where{DeviceType::kCuda, static_cast<std::int16_t>(device)};
    return {nb::none(), ProcessBound(value_or_raise(run_in_step(communicator, [=]() mutable {
              return communicator.device_window(bytes, where, options);
            })))};
  }
  const ArrayView view(memory, "memory", Access::kWrite, std::nullopt, Memory::kAnyDevice);
  const Buffer buffer = view.buffer();
  return {nb::borrow(memory), ProcessBound(value_or_raise(run_in_step(communicator, [=]() mutable {
            return communicator.device_window(buffer, options);
          })))};
}

void lend_nccl(CommunicatorHandle& self, nb::handle pointer) {
  Communicator communicator = self.use();
  void* const nccl = reinterpret_cast<void*>(size_argument(pointer, "pointer", "the address of an ncclComm_t"));
  Status lent;
  {
    const WithoutGil without_gil;
    lent = accord::lend_nccl(communicator, nccl);
  }
  raise_if_error(lent);
}

void bind_device_window(nb::module_& module) {
  nb::class_<DeviceWindowHandle>(
      module, "DeviceWindow", nb::is_weak_referenceable(),
      R"(GPU memory that a communicator's calls use in place. Created by Communicator.device_window().

torch.from_dlpack(window) is a tensor of its bytes; view() it as another dtype. Calls on tensors in it copy less,
depending on `use`; the results are the same. It keeps the communicator's group open. The memory is released once this
object and everything created from it are gone; no call that uses it may still be in a stream then.)")
      .def_prop_ro(
          "nbytes", [](DeviceWindowHandle& self) { return self.use().bytes(); },
          "Its size in bytes, the same on each rank.")
      .def_prop_ro(
          "device", [](DeviceWindowHandle& self) { return static_cast<int>(self.use().device().index); },
          "The GPU's index.")
      .def_prop_ro(
          "data", [](DeviceWindowHandle& self) { return reinterpret_cast<std::uintptr_t>(self.use().data()); },
          "Its address on the GPU.")
      .def_prop_ro(
          "use", [](DeviceWindowHandle& self) { return std::string(to_string(self.use().use())); },
          nb::sig("def use(self) -> typing.Literal['plain', 'registered', 'symmetric']"),
          R"(How calls use the memory.

"symmetric": NCCL's kernels read and write the memory of other ranks.
"registered": NCCL knows this rank's memory.
"plain": like any other memory.)")
      .def_prop_ro(
          "is_direct", [](DeviceWindowHandle& self) { return self.use().is_direct(); },
          "Whether accord's plans read and write the memory of all ranks in place.")
      .def("__dlpack__", &export_dlpack, nb::sig("def __dlpack__(self, **kwargs: typing.Any) -> typing.Any"))
      .def(
          "__dlpack_device__",
          [](DeviceWindowHandle& self) {
            return nb::make_tuple(nb::device::cuda::value, static_cast<int>(self.use().device().index));
          },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"));
}

}  // namespace accord::python
