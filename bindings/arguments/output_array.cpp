#include "bindings/arguments/output_array.hpp"

#include <nanobind/ndarray.h>

#include <utility>

#include "bindings/interpreter/status.hpp"

namespace accord::python {
namespace {

int get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  view->obj = nullptr;
  auto* array = nb::inst_ptr<OutputArray>(self);
  try {
    return array->memory().export_buffer(self, view, flags);
  } catch (nb::python_error& error) {
    error.restore();
    return -1;
  }
}

ArrayMemory& memory_of(nb::handle self) { return nb::cast<OutputArray&>(self).memory(); }

}  // namespace

OutputArray::OutputArray(std::shared_ptr<void> owner, std::shared_ptr<const RunCount> count, TensorView output)
    : owner_(std::move(owner)),
      count_(std::move(count)),
      run_(count_->runs),
      memory_(output.buffer.data, output.buffer.dtype, std::move(output.shape), Access::kRead) {}

ArrayMemory& OutputArray::memory() {
  if (count_->runs != run_)
    raise(Status(StatusCode::kWrongState,
                 "this output's context has run again; read or copy an output before the next run"));
  return memory_;
}

void bind_output_array(nb::module_& module) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)}, {0, nullptr}};
  nb::class_<OutputArray> array(module, "OutputArray", nb::type_slots(slots),
                                R"(An output of an engine: read-only, in the engine's own memory.

numpy.asarray(output) and torch.from_dlpack(output) share that memory. The output is valid until its context runs
again. After that, reading it raises WrongState, and arrays that were created from it earlier show the new output.
numpy.array(output) makes a copy.)");
  def_array_protocols(
      array, "OutputArray", [](OutputArray& self) -> const ArrayMemory& { return self.description(); }, memory_of);
}

}  // namespace accord::python
