#include "bindings/language/source.hpp"

#include <cstring>

#include "bindings/arguments/array.hpp"
#include "bindings/arguments/integers.hpp"

namespace accord::python {
namespace {

constexpr const char* kSourceName = "source";

SourceTensor copy_of(nb::handle array) {
  const ArrayView view(array, kSourceName, Access::kRead);
  const Buffer& buffer = view.buffer();
  SourceTensor tensor{buffer.dtype, view.shape(), std::vector<std::byte>(buffer.bytes())};
  if (!tensor.data.empty()) std::memcpy(tensor.data.data(), buffer.data, tensor.data.size());
  return tensor;
}

SourceTensor ids_of(nb::handle list) {
  const std::vector<std::int64_t> ids = integers_of(list);
  SourceTensor tensor{DType::kInt64, {static_cast<std::int64_t>(ids.size())}, {}};
  tensor.data.resize(ids.size() * sizeof(std::int64_t));
  if (!ids.empty()) std::memcpy(tensor.data.data(), ids.data(), tensor.data.size());
  return tensor;
}

bool is_list(nb::handle value) { return nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value); }

}  // namespace

std::vector<SourceTensor> source_argument(nb::handle source) {
  if (!is_list(source)) return {copy_of(source)};
  if (nb::len(source) == 0 || nb::isinstance<nb::int_>(source[0])) return {ids_of(source)};
  std::vector<SourceTensor> tensors;
  for (const nb::handle array : source) tensors.push_back(copy_of(array));
  return tensors;
}

}  // namespace accord::python
