// Every wait here may be interrupted at any time. An interrupted wait consumes no signal; an interrupted put or get
// may have copied a part of the data.
#include "bindings/communicator/window.hpp"

#include <nanobind/stl/optional.h>

#include <limits>
#include <span>
#include <string>
#include <vector>

#include "bindings/arguments/array.hpp"
#include "bindings/arguments/duration.hpp"
#include "bindings/arguments/integers.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {
namespace {

std::vector<std::int64_t> shape_argument(nb::handle shape) {
  std::vector<std::int64_t> extents = integers_of(shape);
  for (const std::int64_t extent : extents)
    if (extent < 0) raise_invalid("shape: " + std::to_string(extent) + " is negative");
  return extents;
}

std::size_t bytes_of(const std::vector<std::int64_t>& shape, DType dtype) {
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t extent : shape)
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(extent), &bytes))
      return std::numeric_limits<std::size_t>::max();
  return bytes;
}

WindowArray empty(WindowHandle& self, nb::handle shape, nb::handle dtype, nb::handle alignment) {
  std::vector<std::int64_t> extents = shape_argument(shape);
  const DType type = dtype_argument(dtype).value_or(DType::kFloat32);
  const auto block = std::make_shared<WindowBlock>(value_or_raise(
      self.use().allocate(bytes_of(extents, type), size_argument(alignment, "alignment", "a number of bytes"))));
  return {block, ArrayMemory(block->bytes().data(), type, std::move(extents), Access::kWrite)};
}

WindowArray all_of(const Window& window, std::span<std::byte> memory) {
  return {std::make_shared<Window>(window),
          ArrayMemory(memory.data(), DType::kUInt8, {static_cast<std::int64_t>(memory.size())}, Access::kWrite)};
}

Rank checked_rank(const Window& window, Rank rank) {
  if (rank >= 0 && rank < window.size()) return rank;
  raise_invalid("rank: " + std::to_string(rank) + " is not a rank of the group, which has ranks 0 to " +
                std::to_string(window.size() - 1));
}

std::optional<WindowArray> peer(WindowHandle& self, Rank rank) {
  Window& window = self.use();
  const std::span<std::byte> memory = window.peer(checked_rank(window, rank));
  if (memory.empty() && window.bytes(rank) > 0) return std::nullopt;
  return all_of(window, memory);
}

std::size_t nbytes(WindowHandle& self, std::optional<Rank> rank) {
  Window& window = self.use();
  return window.bytes(rank ? checked_rank(window, *rank) : window.rank());
}

void put(WindowHandle& self, nb::handle array, Rank to, nb::handle offset, nb::handle dtype) {
  Window& window = self.use();
  const ArrayView view(array, "array", Access::kRead, dtype_argument(dtype));
  const std::size_t there = size_argument(offset, "offset", "a number of bytes");
  wait_interruptibly([&] { return window.put(view.buffer(), to, there); });
}

void get_elements(WindowHandle& self, nb::handle array, Rank source, nb::handle offset, nb::handle dtype) {
  Window& window = self.use();
  const ArrayView view(array, "array", Access::kWrite, dtype_argument(dtype));
  const std::size_t there = size_argument(offset, "offset", "a number of bytes");
  wait_interruptibly([&] { return window.get(view.buffer(), source, there); });
}

void wait(WindowHandle& self, Rank source, nb::handle timeout) {
  Window window = self.use();
  const CallOptions options{.timeout = duration_argument(timeout), .stream = {}};
  wait_interruptibly([&] { return window.wait(source, options); });
}

int get_window_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  return nb::inst_ptr<WindowArray>(self)->memory.export_buffer(self, view, flags);
}

ArrayMemory& memory_of_window(nb::handle self) { return nb::cast<WindowArray&>(self).memory; }

void bind_window_array(nb::module_& module) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_window_buffer)}, {0, nullptr}};
  nb::class_<WindowArray> array(
      module, "WindowArray", nb::type_slots(slots),
      R"(An array in a window: numpy.asarray(array) and torch.from_dlpack(array) share its memory.

The memory stays in place as long as this array, or anything created from it, lives; then a piece allocated by
Window.empty() is free again. Calls of the communicator take it like any array, without an intermediate copy.)");
  def_array_protocols(
      array, "WindowArray", [](WindowArray& self) -> const ArrayMemory& { return self.memory; }, memory_of_window);
  array.def_prop_ro(
      "nbytes", [](WindowArray& self) { return self.memory.bytes(); }, "Its size in bytes.");
}

}  // namespace

#define ACCORD_ELEMENTS_SIG "array: accord._arrays.ArrayLike"

void bind_window(nb::module_& module) {
  bind_window_array(module);
  nb::class_<WindowHandle>(module, "Window", nb::is_weak_referenceable(),
                           R"(Memory that the ranks of a communicator share. Created by Communicator.window().

Every rank contributes some, and every rank reaches the memory of all others, by put() and get(), or by address with
peer(). Collectives on arrays in windows need no intermediate copy. The window keeps the communicator's group open,
and each rank may release it at any time. Any thread may call any method, but the caller must order conflicting
accesses to the same memory, by signal() and wait() or by a barrier.)")
      .def_prop_ro(
          "rank", [](WindowHandle& self) { return self.use().rank(); }, "This process's rank, counted from 0.")
      .def_prop_ro(
          "size", [](WindowHandle& self) { return self.use().size(); }, "The number of ranks.")
      .def("nbytes", &nbytes, nb::arg("rank") = nb::none(), nb::sig("def nbytes(self, rank: int | None = None) -> int"),
           "Returns the number of bytes that `rank`, or this rank, contributed.")
      .def_prop_ro(
          "local", [](WindowHandle& self) { return all_of(self.use(), self.use().local()); },
          "This rank's memory, as bytes.")
      .def("peer", &peer, nb::arg("rank"), nb::sig("def peer(self, rank: int) -> WindowArray | None"),
           R"(Returns the memory of `rank`, as bytes, in place; None if the transport does not map it.

It stays readable as long as anything created from it lives, even after that rank has died.)")
      .def("empty", &empty, nb::arg("shape"), nb::arg("dtype") = "float32", nb::kw_only(), nb::arg("alignment") = 64,
           nb::sig("def empty(self, shape: int | collections.abc.Sequence[int], dtype: accord._arrays.DTypeName = "
                   "'float32', *, alignment: int = 64) -> "
                   "WindowArray"),
           R"(Allocates an uninitialized array in a piece of this rank's memory. Not collective.

No other array has this piece. Raises ResourceExhausted, which says how much is free. A program that allocates arrays
must not use the rest of `local`.)")
      .def("put", &put, nb::arg("array"), nb::arg("to"), nb::arg("offset") = 0, nb::kw_only(),
           nb::arg("dtype") = nb::none(),
           nb::sig("def put(self, " ACCORD_ELEMENTS_SIG
                   ", to: int, offset: int = 0, *, dtype: accord._arrays.DTypeName | None = None) -> None"),
           R"(Copies `array` to `offset` bytes from the start of rank `to`'s memory.

The data is visible to a rank that waits for a later signal from this rank. Raises InvalidArgument, which names the
bounds. Between hosts it waits while too much data is in flight to that rank. It then raises Timeout after the
communicator's timeout, which names the rank; a part of the data may have been put. Ctrl-C ends that wait at once.)")
      .def("get", &get_elements, nb::arg("array"), nb::arg("source"), nb::arg("offset") = 0, nb::kw_only(),
           nb::arg("dtype") = nb::none(),
           nb::sig("def get(self, " ACCORD_ELEMENTS_SIG
                   ", source: int, offset: int = 0, *, dtype: accord._arrays.DTypeName | None = None) -> None"),
           "Copies into `array` from `offset` bytes from the start of rank `source`'s memory. Raises Timeout as put() "
           "does.")
      .def(
          "signal",
          [](WindowHandle& self, Rank to) {
            Window& window = self.use();
            wait_interruptibly([&] { return window.signal(to); });
          },
          nb::arg("to"), "Sends one signal to rank `to`. Waits only between hosts, as put() does.")
      .def("wait", &wait, nb::arg("source"), nb::kw_only(), nb::arg("timeout") = nb::none(),
           nb::sig("def wait(self, source: int, *, timeout: float | datetime.timedelta | None = None) -> None"),
           R"(Waits for one signal from rank `source` that no wait has consumed yet, and consumes it.

Raises Timeout, which names the rank, after `timeout` (None: the communicator's); this has no other effect, and you
may wait again. Raises the failure if the group fails, or an error if that rank has released the window. Ctrl-C raises
KeyboardInterrupt and consumes no signal.)")
      .def("__repr__", [](WindowHandle& self) {
        Window* window = self.window.peek();
        if (window == nullptr) return std::string("<accord.Window of the parent process>");
        return "<accord.Window " + std::to_string(window->number()) + ", rank " + std::to_string(window->rank()) +
               " of " + std::to_string(window->size()) + ", " + std::to_string(window->local().size()) + " bytes>";
      });
}

}  // namespace accord::python
