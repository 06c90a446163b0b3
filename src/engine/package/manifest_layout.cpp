// The tensors of a file, sorted by offset, must follow each other from the end of its header to its last byte, so
// every byte of a weight file belongs to its header or to exactly one granule. A file outside the package (of a
// checkpoint) may contain other tensors too.
#include "engine/package/manifest_layout.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accord::engine {
namespace {

Status layout_error(const std::string& text) { return Status(StatusCode::kCorrupt, "manifest.json: " + text); }

}  // namespace

Status check_layout(const Manifest& manifest) {
  std::vector<const TensorEntry*> order;
  for (const auto& tensor : manifest.tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return std::pair(a->file, a->offset) < std::pair(b->file, b->offset);
  });
  auto next = order.begin();
  for (std::size_t i = 0; i < manifest.weight_files.size(); ++i) {
    const auto& file = manifest.weight_files[i];
    auto end = file.header_bytes;
    for (; next != order.end() && (*next)->file == static_cast<int>(i); ++next) {
      const auto& tensor = **next;
      if (file.reference && tensor.packing) {
        return layout_error(fmt::format("tensor \"{}\" is packed, but is stored in {}", tensor.name, *file.reference));
      }
      if (tensor.offset < end || (tensor.offset > end && !file.reference)) {
        return layout_error(fmt::format("tensor \"{}\" begins at byte {} of {}, expected {}: tensors {}", tensor.name,
                                        tensor.offset, file.name, end,
                                        tensor.offset < end ? "overlap" : "leave a gap"));
      }
      // Cannot overflow: both are at most 2^46.
      end = tensor.offset + tensor.bytes();
      if (end > file.bytes) {
        return layout_error(
            fmt::format("tensor \"{}\" ends at byte {} of {}, which has {}", tensor.name, end, file.name, file.bytes));
      }
    }
    if (end != file.bytes && !file.reference) {
      return layout_error(fmt::format("{} has {} bytes, but its tensors end at {}", file.name, file.bytes, end));
    }
  }
  return {};
}

}  // namespace accord::engine
