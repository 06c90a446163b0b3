#pragma once
// The manifest as stored on disk, and the checks of entire files that opening and verifying a package share.

#include <string>
#include <string_view>

#include "engine/package/package.hpp"
#include "engine/package/package_folder.hpp"

namespace accord::engine {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::size_t kMaxManifestBytes = std::size_t{256} << 20;
inline constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 46;

/// manifest.json and its hash.
struct ManifestText {
  std::string text;
  std::string sha256;  ///< of `text`
  Status hash_status;  ///< kCorrupt if manifest.sha256 differs from `sha256`
  std::uint64_t bytes_read = 0;
};
Result<ManifestText> read_manifest_text(const PackageFolder& folder);

/// Reads the first `bytes` of `file` and compares their hash with `sha256`. Fails with kCorrupt, naming the file and
/// `part`, if they differ.
Result<std::string> read_hashed(const PackageFile& file, std::uint64_t bytes, std::string_view sha256,
                                std::string_view part);

/// Checks the graph's parameters against the manifest: each must be a tensor there, of equal dtype and shape.
Status check_parameters(const Graph& graph, std::string_view file, const Manifest& manifest);

/// Returns text such as `weights-00001.safetensors: tensor "x": granule 3 (bytes 4096 to 8191) is damaged: ...`.
std::string damaged_granule(const Manifest& manifest, const TensorEntry& tensor, std::uint64_t granule,
                            std::uint64_t hash);

}  // namespace accord::engine
