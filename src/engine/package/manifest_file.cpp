// manifest.sha256 is 64 hexadecimal digits and a newline, compared byte by byte, so that damage to it is found as well
// as damage to the manifest. The hashes of everything else in a package are in the manifest.

#include "engine/package/manifest_file.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.hpp"

namespace accord::engine {
namespace {

constexpr std::uint64_t kHashFileBytes = 65;

}  // namespace

Result<ManifestText> read_manifest_text(const PackageFolder& folder) {
  ACCORD_ASSIGN_OR_RETURN(const auto file, folder.file("manifest.json"));
  if (file.bytes() > kMaxManifestBytes) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("manifest.json: it has {} bytes, which is too large", file.bytes()));
  }
  ManifestText manifest;
  ACCORD_ASSIGN_OR_RETURN(manifest.text, file.read_text(file.bytes()));
  manifest.sha256 = sha256_hex(std::as_bytes(std::span(manifest.text)));
  manifest.bytes_read = file.bytes();
  const auto hash_file = folder.file("manifest.sha256", kHashFileBytes);
  if (!hash_file.ok()) {
    manifest.hash_status = hash_file.status();
    return manifest;
  }
  ACCORD_ASSIGN_OR_RETURN(const auto expected, hash_file->read_text(kHashFileBytes));
  manifest.bytes_read += kHashFileBytes;
  if (expected != manifest.sha256 + "\n") {
    manifest.hash_status = Status(
        StatusCode::kCorrupt, fmt::format("manifest.json: its SHA-256 is {}, but manifest.sha256 contains another: one "
                                          "of the two is damaged",
                                          manifest.sha256));
  }
  return manifest;
}

Result<std::string> read_hashed(const PackageFile& file, std::uint64_t bytes, std::string_view sha256,
                                std::string_view part) {
  ACCORD_ASSIGN_OR_RETURN(auto text, file.read_text(bytes));
  const auto actual = sha256_hex(std::as_bytes(std::span(text)));
  if (actual != sha256) {
    return Status(StatusCode::kCorrupt, fmt::format("{}: {} (bytes 0 to {}) is damaged: its SHA-256 is {}, expected {}",
                                                    file.name(), part, bytes - 1, actual, sha256));
  }
  return text;
}

Status check_parameters(const Graph& graph, std::string_view file, const Manifest& manifest) {
  const auto tensors = tensors_by_name(manifest);
  for (const auto& parameter : graph.parameters) {
    const auto found = tensors.find(parameter.tensor);
    if (found == tensors.end()) {
      return Status(StatusCode::kCorrupt,
                    fmt::format("{}: parameter \"{}\" is not in manifest.json", file, parameter.tensor));
    }
    const auto& value = graph.values[static_cast<std::size_t>(parameter.value)];
    const SymbolicShape shape(found->second->shape.begin(), found->second->shape.end());
    if (value.shape != shape || value.dtype != found->second->dtype) {
      return Status(StatusCode::kCorrupt, fmt::format("{}: parameter \"{}\" is {} {}, manifest.json has {} {}", file,
                                                      parameter.tensor, to_string(value.dtype), shape_text(value.shape),
                                                      to_string(found->second->dtype), shape_text(shape)));
    }
  }
  return {};
}

std::string damaged_granule(const Manifest& manifest, const TensorEntry& tensor, std::uint64_t granule,
                            std::uint64_t hash) {
  const auto begin = tensor.offset + granule * tensor.granule_bytes;
  const WeightFileEntry& file = manifest.weight_files[static_cast<std::size_t>(tensor.file)];
  return fmt::format("{}: tensor \"{}\": granule {} (bytes {} to {}) is damaged: its XXH3 is {}, expected {}",
                     file.reference.value_or(file.name), tensor.name, granule, begin,
                     begin + tensor.granule_range_bytes(granule, 1) - 1, hex64(hash),
                     hex64(tensor.granule_xxh3[static_cast<std::size_t>(granule)]));
}

}  // namespace accord::engine
