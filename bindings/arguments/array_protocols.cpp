// NumPy reads the memory through the buffer protocol, torch and others through DLPack. bfloat16 and 8-bit floats have
// no buffer format, so NumPy gets an error that points to torch or ml_dtypes instead of silently getting something
// else.
#include "bindings/arguments/array_protocols.hpp"

#include <nanobind/ndarray.h>

#include <utility>

namespace accord::python {
namespace {

std::string no_format(DType dtype) {
  return std::string(to_string(dtype)) + " has no buffer format; use DLPack, e.g. torch.from_dlpack(array)";
}

template <typename... Options>
nb::object dlpack_of(nb::handle self, const ArrayMemory& memory, const nb::kwargs& options) {
  const std::vector<std::size_t> shape(memory.shape().begin(), memory.shape().end());
  const nb::ndarray<nb::array_api, Options...> view(memory.data(), shape.size(), shape.data(), self, nullptr,
                                                    dlpack_dtype(memory.dtype()), nb::device::cpu::value, 0);
  return nb::cast(view).attr("__dlpack__")(**options);
}

}  // namespace

ArrayMemory::ArrayMemory(void* data, DType dtype, std::vector<std::int64_t> shape, Access access)
    : data_(data),
      dtype_(dtype),
      access_(access),
      shape_(std::move(shape)),
      bytes_(size_of(dtype)),
      extents_(shape_.begin(), shape_.end()),
      strides_(shape_.size()) {
  for (std::size_t i = strides_.size(); i-- > 0; bytes_ *= static_cast<std::size_t>(extents_[i]))
    strides_[i] = static_cast<Py_ssize_t>(bytes_);
}

int ArrayMemory::export_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  view->obj = nullptr;
  const char* const format = buffer_format(dtype_);
  if (format == nullptr) {
    PyErr_SetString(PyExc_BufferError, no_format(dtype_).c_str());
    return -1;
  }
  if ((flags & PyBUF_WRITABLE) != 0 && access_ == Access::kRead) {
    PyErr_SetString(PyExc_BufferError, "this array is read-only; copy it to change it");
    return -1;
  }
  view->buf = data_;
  view->len = static_cast<Py_ssize_t>(bytes_);
  view->itemsize = static_cast<Py_ssize_t>(size_of(dtype_));
  view->readonly = access_ == Access::kRead ? 1 : 0;
  view->ndim = static_cast<int>(shape_.size());
  view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(format) : nullptr;
  view->shape = (flags & PyBUF_ND) != 0 ? extents_.data() : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? strides_.data() : nullptr;
  view->suboffsets = nullptr;
  view->internal = nullptr;
  view->obj = Py_NewRef(self);
  return 0;
}

nb::object ArrayMemory::export_dlpack(nb::handle self, const nb::kwargs& options) const {
  if (access_ == Access::kRead) return dlpack_of<nb::ro>(self, *this, options);
  return dlpack_of<>(self, *this, options);
}

nb::object ArrayMemory::export_numpy(nb::handle self, nb::handle dtype, nb::handle copy) const {
  if (buffer_format(dtype_) == nullptr) throw nb::type_error(("NumPy: " + no_format(dtype_)).c_str());
  const nb::module_ numpy = nb::module_::import_("numpy");
  const nb::object array =
      numpy.attr("asarray")(nb::steal(PyMemoryView_FromObject(self.ptr())), nb::arg("dtype") = dtype);
  return !copy.is_none() && nb::cast<bool>(copy) ? array.attr("copy")() : array;
}

nb::tuple ArrayMemory::shape_tuple() const {
  nb::list extents;
  for (const std::int64_t extent : shape_) extents.append(extent);
  return nb::tuple(extents);
}

Py_ssize_t ArrayMemory::length() const {
  if (shape_.empty()) throw nb::type_error("len() of an array without dimensions");
  return extents_.front();
}

std::string ArrayMemory::repr(std::string_view type) const {
  return "<accord." + std::string(type) + " " + std::string(to_string(dtype_)) + " " +
         nb::cast<std::string>(nb::str(shape_tuple())) + ">";
}

}  // namespace accord::python
