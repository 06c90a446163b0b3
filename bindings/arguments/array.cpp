// The buffer protocol comes first, because it is fastest for NumPy (0.2 us). Objects without it are read through
// DLPack: through the C function table of their type if it has one (torch: 0.1 us instead of 4 us for the Python
// method), else through __dlpack__. DLPack gives a null pointer for a tensor that wraps other tensors. Arrays of
// ml_dtypes' bfloat16 and 8-bit floats have a buffer without a format; the name of their dtype identifies the element
// type.
#include "bindings/arguments/array.hpp"

#include <algorithm>
#include <cstddef>
#include <string>

#include "bindings/arguments/dlpack_exchange.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {
namespace {

constexpr std::uint64_t kDlpackReadOnly = 1;
constexpr int kDlpackDefaultStream = 1;  ///< CUDA's default stream

/// Returns "int8, int16, ... and bool".
std::string all_dtypes() {
  std::string names;
  for (int i = 0; i < kDTypeCount; ++i) {
    if (i > 0) names += i == kDTypeCount - 1 ? " and " : ", ";
    names += to_string(static_cast<DType>(i));
  }
  return names;
}

std::string text(std::string_view argument, std::string_view what) {
  return std::string(argument) + ": " + std::string(what);
}

[[noreturn]] void raise_type(const std::string& message) { throw nb::type_error(message.c_str()); }

/// Returns the error that Python has set, as one line (torch appends stack traces), and clears it.
std::string fetch_error() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  std::string line = "?";
  if (value != nullptr) {
    const nb::object message = nb::steal(PyObject_Str(value));
    const std::string kind = nb::cast<std::string>(nb::handle(value).type().attr("__name__"));
    line = kind + ": " + (message.is_valid() ? nb::cast<std::string>(message) : "?");
  }
  line.resize(std::min(line.find('\n'), line.size()));
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return line;
}

std::string class_name(nb::handle object) { return nb::type_name(object.type()).c_str(); }

/// An element according to the buffer protocol: a dtype of accord, or only a width.
struct Element {
  std::optional<DType> dtype;
  std::string name;
};

Element element_of(DType dtype) { return {dtype, std::string(to_string(dtype))}; }

/// C's names for integers ("l" for long) have different widths on different machines, so the width decides.
std::optional<DType> integer_dtype(bool is_signed, Py_ssize_t width) {
  switch (width) {
    case 1: return is_signed ? DType::kInt8 : DType::kUInt8;
    case 2: return is_signed ? DType::kInt16 : DType::kUInt16;
    case 4: return is_signed ? DType::kInt32 : DType::kUInt32;
    case 8: return is_signed ? DType::kInt64 : DType::kUInt64;
    default: return std::nullopt;
  }
}

std::optional<DType> dtype_of_format(std::string_view letters, Py_ssize_t width) {
  if (letters == "Zf") return DType::kComplex64;
  if (letters == "Zd") return DType::kComplex128;
  if (letters.size() != 1) return std::nullopt;
  if (std::string_view("bhilq").find(letters[0]) != std::string_view::npos) return integer_dtype(true, width);
  if (std::string_view("BHILQ").find(letters[0]) != std::string_view::npos) return integer_dtype(false, width);
  switch (letters[0]) {
    case 'e': return DType::kFloat16;
    case 'f': return DType::kFloat32;
    case 'd': return DType::kFloat64;
    case '?': return DType::kBool;
    default: return std::nullopt;
  }
}

Element element_of_format(const char* format, Py_ssize_t width, std::string_view argument) {
  if (format == nullptr) return element_of(DType::kUInt8);
  const char order = format[0];
  if (order == '>' || order == '!')
    raise_invalid(
        text(argument, "its elements are in big-endian order; convert them to the machine's byte order first"));
  const char* letters = format + (order == '@' || order == '=' || order == '<' ? 1 : 0);
  if (const std::optional<DType> dtype = dtype_of_format(letters, width)) return element_of(*dtype);
  return {std::nullopt, std::string("of format \"") + format + "\""};
}

Element element_of_dlpack(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  for (int i = 0; i < kDTypeCount; ++i)
    if (dlpack_dtype(static_cast<DType>(i)) == dtype) return element_of(static_cast<DType>(i));
  std::string kind = "of DLPack type " + std::to_string(dtype.code) + ",";
  switch (static_cast<Code>(dtype.code)) {
    case Code::Int: kind = "int"; break;
    case Code::UInt: kind = "uint"; break;
    case Code::Float: kind = "float"; break;
    case Code::Complex: kind = "complex"; break;
    default: break;
  }
  return {std::nullopt, kind + std::to_string(dtype.bits)};
}

/// Returns the dtype with this ml_dtypes name, if it is one that has no letter in the buffer protocol.
std::optional<DType> without_format(std::string_view name) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat8E4M3FN, DType::kFloat8E5M2})
    if (name == to_string(dtype)) return dtype;
  return std::nullopt;
}

/// Determines the elements in `bytes` of memory: those of the array itself, or of type `requested` laid over them.
Buffer resolve_buffer(void* data, std::size_t bytes, std::size_t width, const Element& element,
                      std::optional<DType> requested, std::string_view argument) {
  if (!requested) {
    if (!element.dtype)
      raise_type(text(argument, "its dtype is " + element.name + "; accord supports " + all_dtypes()));
    return Buffer{data, bytes / size_of(*element.dtype), *element.dtype, {}};
  }
  const std::size_t size = size_of(*requested);
  const bool fits = width == size || (width == 1 && bytes % size == 0);
  if (!fits)
    raise_invalid(text(argument, "cannot be read as " + std::string(to_string(*requested)) + ": its elements have " +
                                     std::to_string(width) + " bytes, not " + std::to_string(size)));
  return Buffer{data, bytes / size, *requested, {}};
}

void check_writable(bool read_only, std::string_view argument, Access access) {
  if (read_only && access == Access::kWrite)
    raise_invalid(text(argument, "is read-only, but this call writes it; pass a writable array"));
}

void check_contiguous(bool contiguous, std::string_view argument) {
  if (!contiguous)
    raise_invalid(text(argument,
                       "is not contiguous in row-major order; accord never copies silently: pass "
                       "numpy.ascontiguousarray(...) or tensor.contiguous()"));
}

bool lacks_data(const nb::dlpack::dltensor& tensor) {
  const auto is_positive = [](std::int64_t extent) { return extent > 0; };
  return tensor.data == nullptr && std::all_of(tensor.shape, tensor.shape + tensor.ndim, is_positive);
}

[[noreturn]] void raise_without_memory(nb::handle object, std::string_view argument) {
  raise_type(text(
      argument,
      "this " + class_name(object) +
          " has elements, but no memory of its own; pass a tensor that has memory, such as the one that it holds"));
}

/// Waits for the result of a functional collective and returns the tensor that it holds. Rejects other tensors
/// without memory.
nb::object wait_for_tensor(nb::handle object, std::string_view argument) {
  if (!nb::hasattr(object, "trigger_wait")) raise_without_memory(object, argument);
  return object.attr("trigger_wait")();
}

bool is_row_major(const nb::dlpack::dltensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t expected = 1;
  bool dense = true;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0) return true;
    dense = dense && (tensor.shape[i] == 1 || tensor.strides[i] == expected);
    expected *= tensor.shape[i];
  }
  return dense;
}

/// torch conjugates and negates some views lazily, when they are read, but its C table still returns their memory.
/// Among dense tensors these are complex ones, x.conj(), and a single element of x.conj().imag.
void check_resolved(nb::handle object, const nb::dlpack::dltensor& tensor, std::string_view argument) {
  const bool is_complex = tensor.dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Complex);
  const bool is_one = std::all_of(tensor.shape, tensor.shape + tensor.ndim, [](std::int64_t n) { return n == 1; });
  if (!is_complex && !is_one) return;
  const nb::object pending = nb::steal(PyObject_CallMethod(object.ptr(), is_complex ? "is_conj" : "is_neg", nullptr));
  if (!pending.is_valid()) return PyErr_Clear();  // not a torch tensor
  if (pending.ptr() == Py_True)
    raise_invalid(text(argument, is_complex ? "is conjugated only when it is read; pass tensor.resolve_conj()"
                                            : "is negated only when it is read; pass tensor.resolve_neg()"));
}

Device device_of(const nb::dlpack::dltensor& tensor, std::string_view argument, Memory memory) {
  const int type = tensor.device.device_type, index = tensor.device.device_id;
  if (type == kDlpackCpu || type == kDlpackCudaHost) return {};
  const Device device{DeviceType::kCuda, static_cast<std::int16_t>(index)};
  const bool is_cuda = type == kDlpackCuda || type == kDlpackCudaManaged;
  if (is_cuda && memory != Memory::kCpu) return device;
  const std::string where =
      is_cuda ? to_string(device)
              : "a device (DLPack type " + std::to_string(type) + ", index " + std::to_string(index) + ")";
  const char* const known =
      memory != Memory::kCpu ? "; accord supports the CPU and CUDA devices" : "; this call takes memory on the CPU";
  raise(Status(StatusCode::kUnsupported, text(argument, "is on " + where + known)));
}

}  // namespace

ArrayView::ArrayView(nb::handle object, std::string_view argument, Access access, std::optional<DType> dtype,
                     Memory memory) {
  nb::object held;
  try {
    if (PyObject_CheckBuffer(object.ptr()) && acquire_buffer(object, argument, access, dtype)) return;
    acquire_dlpack(object, argument, memory);
    if (lacks_memory()) {
      release();
      held = wait_for_tensor(object, argument);
      acquire_dlpack(held, argument, memory);
      if (lacks_memory()) raise_without_memory(held, argument);
    }
    if (versioned_ != nullptr)
      read_dlpack(versioned_->tensor, (versioned_->flags & kDlpackReadOnly) != 0, argument, access, dtype, memory);
    else
      read_dlpack(unversioned_->tensor, false, argument, access, dtype, memory);
  } catch (...) {
    release();
    throw;
  }
}

ArrayView::~ArrayView() { release(); }

bool ArrayView::lacks_memory() const {
  return versioned_ != nullptr ? lacks_data(versioned_->tensor) : lacks_data(unversioned_->tensor);
}

void ArrayView::release() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
  if (versioned_ != nullptr && versioned_->deleter != nullptr) versioned_->deleter(versioned_);
  if (unversioned_ != nullptr && unversioned_->deleter != nullptr) unversioned_->deleter(unversioned_);
  versioned_ = nullptr;
  unversioned_ = nullptr;
}

bool ArrayView::acquire_buffer(nb::handle object, std::string_view argument, Access access,
                               std::optional<DType> dtype) {
  Element element;
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_RECORDS_RO) == 0) {
    element = element_of_format(view_.format, view_.itemsize, argument);
  } else {
    const std::string error = fetch_error();
    const nb::object name = nb::getattr(nb::getattr(object, "dtype", nb::none()), "name", nb::none());
    const std::optional<DType> named =
        nb::isinstance<nb::str>(name) ? without_format(nb::cast<std::string>(name)) : std::nullopt;
    if (!named || PyObject_GetBuffer(object.ptr(), &view_, PyBUF_STRIDED_RO) != 0) {
      PyErr_Clear();
      if (nb::hasattr(object, "__dlpack__") && !nb::hasattr(object, "__array_interface__")) return false;
      raise_type(text(argument, "its memory cannot be used (" + error + "); accord supports " + all_dtypes()));
    }
    element = element_of(*named);
  }
  check_contiguous(PyBuffer_IsContiguous(&view_, 'C') != 0, argument);
  check_writable(view_.readonly != 0, argument, access);
  buffer_ = resolve_buffer(view_.buf, static_cast<std::size_t>(view_.len), static_cast<std::size_t>(view_.itemsize),
                           element, dtype, argument);
  return true;
}

void ArrayView::find_stream(const DlpackExchange& exchange, std::string_view argument) {
  const nb::dlpack::device device = versioned_->tensor.device;
  if (device.device_type != kDlpackCuda && device.device_type != kDlpackCudaManaged) return;
  if (exchange.current_stream(device.device_type, device.device_id, &stream_.handle) != 0)
    raise_type(text(argument, "the stream of its memory cannot be determined (" + fetch_error() + ")"));
}

void ArrayView::acquire_dlpack(nb::handle object, std::string_view argument, Memory memory) {
  if (const DlpackExchange* exchange = exchange_of(object)) {
    if (exchange->from_object(object.ptr(), &versioned_) != 0)
      raise_type(text(argument, "its memory cannot be used (" + fetch_error() + ")"));
    check_resolved(object, versioned_->tensor, argument);
    if (memory == Memory::kOrderedDevice) find_stream(*exchange, argument);
    return;
  }
  if (!nb::hasattr(object, "__dlpack__"))
    raise_type(text(argument, "expected an array (with the buffer protocol, as NumPy's, or DLPack, as torch's), got " +
                                  class_name(object)));
  nb::object capsule;
  try {
    nb::dict options;
    if (memory == Memory::kOrderedDevice && reports_cuda(object)) options["stream"] = kDlpackDefaultStream;
    nb::dict of_version_1 = nb::steal<nb::dict>(PyDict_Copy(options.ptr()));
    of_version_1["max_version"] = nb::make_tuple(1, 0);
    try {
      capsule = object.attr("__dlpack__")(**of_version_1);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;
      capsule = object.attr("__dlpack__")(**options);  // a producer older than DLPack 1.0
    }
  } catch (nb::python_error& error) {
    error.restore();
    raise_type(text(argument, "its memory cannot be used (" + fetch_error() + ")"));
  }
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    auto* tensor = static_cast<DlpackVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (tensor->major != 1)
      raise_type(text(argument, "its DLPack version is " + std::to_string(tensor->major) + ", accord supports 1"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    versioned_ = tensor;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    unversioned_ = static_cast<DlpackUnversioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  } else {
    raise_type(text(argument, "its __dlpack__ did not return a DLPack capsule"));
  }
}

void ArrayView::read_dlpack(const nb::dlpack::dltensor& tensor, bool read_only, std::string_view argument,
                            Access access, std::optional<DType> dtype, Memory memory) {
  const Device device = device_of(tensor, argument, memory);
  check_contiguous(is_row_major(tensor), argument);
  check_writable(read_only, argument, access);
  if (tensor.dtype.lanes != 1 || tensor.dtype.bits % 8 != 0)
    raise_type(text(argument, "has elements of " + std::to_string(tensor.dtype.bits) + " bits in " +
                                  std::to_string(tensor.dtype.lanes) + " lanes; accord supports " + all_dtypes()));
  const std::size_t width = tensor.dtype.bits / 8;
  std::size_t bytes = width;
  for (int i = 0; i < tensor.ndim; ++i) bytes *= static_cast<std::size_t>(tensor.shape[i]);
  buffer_ = resolve_buffer(static_cast<std::byte*>(tensor.data) + tensor.byte_offset, bytes, width,
                           element_of_dlpack(tensor.dtype), dtype, argument);
  buffer_.device = device;
}

std::vector<std::int64_t> ArrayView::shape() const {
  if (versioned_ != nullptr || unversioned_ != nullptr) {
    const nb::dlpack::dltensor& tensor = versioned_ != nullptr ? versioned_->tensor : unversioned_->tensor;
    return {tensor.shape, tensor.shape + tensor.ndim};
  }
  if (view_.shape == nullptr) return {static_cast<std::int64_t>(buffer_.count)};
  return {view_.shape, view_.shape + view_.ndim};
}

const char* buffer_format(DType dtype) {
  switch (dtype) {
    case DType::kInt8: return "b";
    case DType::kInt16: return "h";
    case DType::kInt32: return "i";
    case DType::kInt64: return "q";
    case DType::kUInt8: return "B";
    case DType::kUInt16: return "H";
    case DType::kUInt32: return "I";
    case DType::kUInt64: return "Q";
    case DType::kFloat16: return "e";
    case DType::kFloat32: return "f";
    case DType::kFloat64: return "d";
    case DType::kComplex64: return "Zf";
    case DType::kComplex128: return "Zd";
    case DType::kBool: return "?";
    case DType::kBFloat16:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2: return nullptr;
  }
  return nullptr;
}

nb::dlpack::dtype dlpack_dtype(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  Code code = Code::Float;
  switch (dtype) {
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64: code = Code::Int; break;
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64: code = Code::UInt; break;
    case DType::kFloat16:
    case DType::kFloat32:
    case DType::kFloat64: code = Code::Float; break;
    case DType::kBFloat16: code = Code::Bfloat; break;
    case DType::kFloat8E4M3FN: code = Code::Float8_E4M3FN; break;
    case DType::kFloat8E5M2: code = Code::Float8_E5M2; break;
    case DType::kComplex64:
    case DType::kComplex128: code = Code::Complex; break;
    case DType::kBool: code = Code::Bool; break;
  }
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(size_of(dtype) * 8), 1};
}

std::optional<DType> dtype_argument(nb::handle name) {
  if (name.is_none()) return std::nullopt;
  if (!nb::isinstance<nb::str>(name))
    raise_type("dtype: expected a name such as \"bfloat16\", got " + class_name(name));
  return value_or_raise(dtype_from_string(nb::cast<std::string>(name)));
}

}  // namespace accord::python
