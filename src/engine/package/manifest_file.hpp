#pragma once
// The manifest as it lies on disk, and the checks of whole files that opening and verifying a package share.

#include <string>
#include <string_view>

#include "engine/package/package.hpp"
#include "engine/package/package_folder.hpp"

namespace accord::engine {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::size_t kMaxManifestBytes = std::size_t{256} << 20;
inline constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 46;

/// manifest.json and the hash of it.
struct ManifestText {
  std::string text;
  std::string sha256;  ///< of `text`
  Status matches;      ///< kCorrupt if manifest.sha256 does not hold exactly that
  std::uint64_t bytes_read = 0;
};
Result<ManifestText> read_manifest_text(const PackageFolder& folder);

/// Reads the first `bytes` of `file` and holds them against `sha256`; kCorrupt names the file and `part`.
Result<std::string> read_hashed(const PackageFile& file, std::uint64_t bytes, std::string_view sha256,
                                std::string_view part);

/// Holds the graph's parameters against the manifest: each is a tensor there, of equal dtype and shape.
Status check_parameters(const Graph& graph, const Manifest& manifest);

/// `weights-00001.safetensors: tensor "x": granule 3 (bytes 4096 to 8191) is damaged: ...`.
std::string damaged_granule(const Manifest& manifest, const TensorEntry& tensor, std::uint64_t granule,
                            std::uint64_t hash);

}  // namespace accord::engine
