// NumPy takes the memory by the buffer protocol, torch and others by DLPack. bfloat16 has no buffer format, so NumPy is told
// to go by torch or ml_dtypes instead of being given something else in silence.
#include "output_array.hpp"

#include <nanobind/ndarray.h>

#include "array.hpp"
#include "status.hpp"

namespace accord::python {
namespace {

int get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  view->obj = nullptr;
  auto* array = nb::inst_ptr<OutputArray>(self);
  const char* format = buffer_format(array->dtype());
  if (format == nullptr) {
    PyErr_SetString(PyExc_BufferError,
                    "bfloat16 has no buffer format; take it by DLPack, e.g. torch.from_dlpack(output)");
    return -1;
  }
  if ((flags & PyBUF_WRITABLE) != 0) {
    PyErr_SetString(PyExc_BufferError, "an engine's output is read-only; copy it to change it");
    return -1;
  }
  try {
    const Buffer& buffer = array->buffer();
    view->buf = buffer.data;
    view->len = static_cast<Py_ssize_t>(buffer.bytes());
  } catch (nb::python_error& error) {
    error.restore();
    return -1;
  }
  view->itemsize = static_cast<Py_ssize_t>(size_of(array->dtype()));
  view->readonly = 1;
  view->ndim = static_cast<int>(array->shape().size());
  view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(format) : nullptr;
  view->shape = (flags & PyBUF_ND) != 0 ? array->extents() : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? array->strides() : nullptr;
  view->suboffsets = nullptr;
  view->internal = nullptr;
  view->obj = Py_NewRef(self);
  return 0;
}

nb::tuple shape_of(OutputArray& self) {
  nb::list extents;
  for (const std::int64_t extent : self.shape()) extents.append(extent);
  return nb::tuple(extents);
}

nb::object dlpack(nb::handle self, nb::kwargs options) {
  auto& array = nb::cast<OutputArray&>(self);
  const Buffer& buffer = array.buffer();
  const std::vector<std::size_t> shape(array.shape().begin(), array.shape().end());
  const nb::ndarray<nb::array_api, nb::ro> view(buffer.data, shape.size(), shape.data(), self, nullptr,
                                                dlpack_dtype(buffer.dtype), nb::device::cpu::value, 0);
  return nb::cast(view).attr("__dlpack__")(**options);
}

nb::object numpy_array(nb::handle self, nb::handle dtype, nb::handle copy) {
  auto& array = nb::cast<OutputArray&>(self);
  array.buffer();
  if (buffer_format(array.dtype()) == nullptr)
    throw nb::type_error("NumPy has no bfloat16; take this output by DLPack, e.g. torch.from_dlpack(output)");
  const nb::module_ numpy = nb::module_::import_("numpy");
  const nb::object made =
      numpy.attr("asarray")(nb::steal(PyMemoryView_FromObject(self.ptr())), nb::arg("dtype") = dtype);
  return !copy.is_none() && nb::cast<bool>(copy) ? made.attr("copy")() : made;
}

Py_ssize_t length(OutputArray& self) {
  if (self.shape().empty()) throw nb::type_error("len() of an output without dimensions");
  return static_cast<Py_ssize_t>(self.shape().front());
}

std::string repr(nb::handle self) {
  auto& array = nb::cast<OutputArray&>(self);
  return "<accord.OutputArray " + std::string(to_string(array.dtype())) + " " +
         nb::cast<std::string>(nb::str(shape_of(array))) + ">";
}

}  // namespace

OutputArray::OutputArray(std::shared_ptr<void> memory, std::shared_ptr<const RunCount> count, TensorView output)
    : memory_(std::move(memory)),
      count_(std::move(count)),
      run_(count_->runs),
      output_(std::move(output)),
      extents_(output_.shape.begin(), output_.shape.end()),
      strides_(output_.shape.size()) {
  auto stride = static_cast<Py_ssize_t>(size_of(output_.buffer.dtype));
  for (std::size_t i = strides_.size(); i-- > 0; stride *= extents_[i]) strides_[i] = stride;
}

const Buffer& OutputArray::buffer() const {
  if (count_->runs != run_)
    raise(Status(StatusCode::kWrongState,
                 "this output's context has run again since; look at an output, or copy it, before the next run"));
  return output_.buffer;
}

void bind_output_array(nb::module_& module) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)}, {0, nullptr}};
  nb::class_<OutputArray>(module, "OutputArray", nb::type_slots(slots),
                          R"(An output of an engine, read-only, where the engine left it: numpy.asarray(output) and
torch.from_dlpack(output) look at the same memory.

It is the output until its context runs again: then it raises WrongState when it is looked at, and
arrays that were made of it before show the new output. numpy.array(output) makes a copy.)")
      .def_prop_ro("shape", &shape_of, nb::sig("def shape(self) -> tuple[int, ...]"), "The extents, row-major.")
      .def_prop_ro(
          "dtype", [](OutputArray& self) { return std::string(to_string(self.dtype())); },
          "The dtype's name, such as \"float32\".")
      .def("__len__", &length)
      .def("__array__", &numpy_array, nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none(),
           nb::sig("def __array__(self, dtype: object = None, copy: bool | None = None) -> typing.Any"))
      .def("__dlpack__", &dlpack, nb::sig("def __dlpack__(self, **kwargs: typing.Any) -> typing.Any"))
      .def(
          "__dlpack_device__", [](OutputArray&) { return nb::make_tuple(nb::device::cpu::value, 0); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def("__repr__", &repr);
}

}  // namespace accord::python
