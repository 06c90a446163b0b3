#include "output_array.hpp"

#include <nanobind/ndarray.h>

#include <utility>

#include "status.hpp"

namespace accord::python {
namespace {

int get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  view->obj = nullptr;
  auto* array = nb::inst_ptr<OutputArray>(self);
  try {
    return array->memory().give_buffer(self, view, flags);
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
                 "this output's context has run again since; look at an output, or copy it, before the next run"));
  return memory_;
}

void bind_output_array(nb::module_& module) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)}, {0, nullptr}};
  nb::class_<OutputArray>(module, "OutputArray", nb::type_slots(slots),
                          R"(An output of an engine, read-only, where the engine left it: numpy.asarray(output) and
torch.from_dlpack(output) look at the same memory.

It is the output until its context runs again: then it raises WrongState when it is looked at, and
arrays that were made of it before show the new output. numpy.array(output) makes a copy.)")
      .def_prop_ro(
          "shape", [](OutputArray& self) { return self.description().shape_tuple(); },
          nb::sig("def shape(self) -> tuple[int, ...]"), "The extents, row-major.")
      .def_prop_ro(
          "dtype", [](OutputArray& self) { return std::string(to_string(self.description().dtype())); },
          "The dtype's name, such as \"float32\".")
      .def("__len__", [](OutputArray& self) { return self.description().length(); })
      .def(
          "__array__",
          [](nb::handle self, nb::handle dtype, nb::handle copy) {
            return memory_of(self).give_numpy(self, dtype, copy);
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none(),
          nb::sig("def __array__(self, dtype: object = None, copy: bool | None = None) -> typing.Any"))
      .def(
          "__dlpack__",
          [](nb::handle self, const nb::kwargs& options) { return memory_of(self).give_dlpack(self, options); },
          nb::sig("def __dlpack__(self, **kwargs: typing.Any) -> typing.Any"))
      .def(
          "__dlpack_device__", [](OutputArray&) { return nb::make_tuple(nb::device::cpu::value, 0); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def("__repr__", [](OutputArray& self) { return self.description().repr("OutputArray"); });
}

}  // namespace accord::python
