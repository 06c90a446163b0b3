// The format: 8 bytes with the length of the header, little-endian; the header, a JSON object that maps names to
// dtype, shape and the range of the data (`data_offsets`, counted from the end of the header), padded with spaces;
// the data.
#include "cli/engine/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/fd.hpp"
#include "base/text.hpp"
#include "engine/graph/strict_json.hpp"

namespace accord::cli {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kLongestHeader = 100'000'000;  // as in the safetensors library
constexpr std::int64_t kLargestDimension = std::int64_t{1} << 40;

// The dtypes that engines take and return, and their names in the format.
constexpr std::array kDTypes = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt32,
                                DType::kInt64,   DType::kBool,    DType::kUInt8};
constexpr std::array<std::string_view, kDTypes.size()> kNames = {"F32", "F16", "BF16", "I32", "I64", "BOOL", "U8"};

struct Entry {
  NamedTensor tensor;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

Result<Entry> read_entry(const std::string& path, const std::string& name, const nlohmann::json& json,
                         std::size_t data_bytes) {
  constexpr std::array<std::string_view, 3> kKeys = {"dtype", "shape", "data_offsets"};
  ACCORD_ASSIGN_OR_RETURN(const auto object,
                          engine::JsonObject::read(json, fmt::format("{}: tensor \"{}\"", path, name), kKeys));
  Entry entry;
  entry.tensor.name = name;
  ACCORD_ASSIGN_OR_RETURN(const std::string dtype, object.name("dtype"));
  const auto found = std::find(kNames.begin(), kNames.end(), dtype);
  if (found == kNames.end()) return object.corrupt(unknown_name("dtype", dtype, kNames).message());
  entry.tensor.dtype = kDTypes[static_cast<std::size_t>(found - kNames.begin())];

  ACCORD_ASSIGN_OR_RETURN(const nlohmann::json* shape, object.array("shape", 16));
  std::uint64_t bytes = size_of(entry.tensor.dtype);
  for (const nlohmann::json& item : *shape) {
    ACCORD_ASSIGN_OR_RETURN(const std::int64_t dimension,
                            engine::read_integer(item, object.where() + ": shape", 0, kLargestDimension));
    entry.tensor.shape.push_back(dimension);
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dimension), &bytes)) {
      return object.corrupt("its shape is larger than any memory");
    }
  }
  ACCORD_ASSIGN_OR_RETURN(const nlohmann::json* range, object.array("data_offsets", 2));
  if (range->size() != 2) return object.corrupt("data_offsets is not [begin, end]");
  for (std::uint64_t* side : {&entry.begin, &entry.end}) {
    const nlohmann::json& item = (*range)[side == &entry.begin ? 0 : 1];
    ACCORD_ASSIGN_OR_RETURN(const std::int64_t offset, engine::read_integer(item, object.where() + ": data_offsets", 0,
                                                                            static_cast<std::int64_t>(data_bytes)));
    *side = static_cast<std::uint64_t>(offset);
  }
  if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
    return object.corrupt(
        fmt::format("its shape requires {} bytes, but data_offsets is [{}, {}]", bytes, entry.begin, entry.end));
  }
  return entry;
}

}  // namespace

Result<std::vector<NamedTensor>> read_safetensors(const std::string& path) {
  const auto corrupt = [&](std::string what) {
    return Status(StatusCode::kCorrupt, fmt::format("{}: {}", path, what));
  };
  ACCORD_ASSIGN_OR_RETURN(const std::string file, read_file(path));
  if (file.size() < kLengthBytes) return corrupt("too short for a safetensors file");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  if (header_bytes > std::min(kLongestHeader, file.size() - kLengthBytes)) {
    return corrupt(fmt::format("its header should have {} bytes, but the file has {}", header_bytes, file.size()));
  }
  const std::string_view header = std::string_view(file).substr(kLengthBytes, header_bytes);
  const std::string_view data = std::string_view(file).substr(kLengthBytes + header_bytes);
  ACCORD_ASSIGN_OR_RETURN(const nlohmann::json json, engine::parse_json(header, path, kLongestHeader));
  if (!json.is_object()) return corrupt("its header is not a JSON object");

  std::vector<Entry> entries;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") continue;
    ACCORD_ASSIGN_OR_RETURN(Entry entry, read_entry(path, name, value, data.size()));
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t filled = 0;
  std::vector<NamedTensor> tensors;
  for (Entry& entry : entries) {
    if (entry.begin != filled)
      return corrupt(fmt::format("tensor \"{}\" begins at {} instead of {}", entry.tensor.name, entry.begin, filled));
    filled = entry.end;
    entry.tensor.bytes.resize(entry.end - entry.begin);
    if (!entry.tensor.bytes.empty())
      std::memcpy(entry.tensor.bytes.data(), data.data() + entry.begin, entry.tensor.bytes.size());
    tensors.push_back(std::move(entry.tensor));
  }
  if (filled != data.size())
    return corrupt(fmt::format("there are {} bytes after the last tensor", data.size() - filled));
  return tensors;
}

Status write_safetensors(const std::string& path, std::span<const NamedTensor> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::uint64_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    const auto* const dtype = std::find(kDTypes.begin(), kDTypes.end(), tensor.dtype);
    header[tensor.name] = {{"dtype", kNames[static_cast<std::size_t>(dtype - kDTypes.begin())]},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes.size()}}};
    offset += tensor.bytes.size();
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t header_bytes = text.size();
  std::string file(reinterpret_cast<const char*>(&header_bytes), kLengthBytes);
  file += text;
  for (const NamedTensor& tensor : tensors) {
    file.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  return write_file(path, file);
}

}  // namespace accord::cli
