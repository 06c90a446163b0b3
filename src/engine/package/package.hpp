#pragma once
// An engine package on disk: manifest, graph, weights in granules. docs/engine-format.md writes it down.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "accord/buffer.hpp"
#include "accord/status.hpp"
#include "engine/graph/graph.hpp"

namespace accord::engine {

/// How a weight may be divided among the ranks of a group.
struct Sharding {
  std::string group;      ///< "tp"
  int dim = 0;            ///< of the tensor's shape; the file holds it granule after granule along this one
  std::int64_t unit = 1;  ///< elements of that dimension that stay together (a head)
  bool operator==(const Sharding&) const = default;
};

/// One weight as the manifest describes it. A tensor with a sharding lies in the file as its units one after the other
/// (each a contiguous row-major block of the tensor's shape with `dim` cut to `unit`) and has one granule for each.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::optional<Sharding> sharding;
  int file = 0;                     ///< index into Manifest::weight_files
  std::uint64_t offset = 0;         ///< of its first byte in the file
  std::uint64_t granule_bytes = 0;  ///< the last one may be shorter
  std::vector<std::uint64_t> granule_xxh3;

  std::uint64_t bytes() const;
};

/// A rule of the sharding plan, as the user gave it: which modules are parallel, and how.
enum class ParallelStyle : std::uint8_t { kColumn, kRow };
struct ShardingRule {
  std::string pattern;  ///< module path with * for any run of characters
  ParallelStyle style = ParallelStyle::kColumn;
  std::int64_t unit = 1;
  std::string group = "tp";
};

/// A file of weights: its first `header_bytes` are the safetensors header, the tensors fill the rest without gaps.
struct WeightFileEntry {
  std::string name;  ///< inside the package
  std::uint64_t bytes = 0;
  std::uint64_t header_bytes = 0;
  std::string header_sha256;
};

struct Manifest {
  int format_version = 0;
  std::string sha256;    ///< of manifest.json: the package's identity
  std::string producer;  ///< "accord 0.1.0, torch 2.13.0"
  std::vector<std::string> groups;
  std::vector<ShardingRule> rules;
  std::uint64_t graph_bytes = 0;  ///< of graph.json
  std::string graph_sha256;
  std::vector<WeightFileEntry> weight_files;
  std::vector<TensorEntry> tensors;
};

/// Reads the text of manifest.json and checks it: sizes that can exist, known names, tensors that fill their files
/// without gap or overlap, one hash for each granule. kCorrupt names what is wrong; kUnsupported another format
/// version. Sets everything but `sha256`.
Result<Manifest> parse_manifest(std::string_view json);

/// The manifest's tensors by name. Points into the manifest, and stays right when that is moved.
using TensorsByName = std::unordered_map<std::string_view, const TensorEntry*>;
TensorsByName tensors_by_name(const Manifest& manifest);

/// Which units a rank holds: units are spread as evenly as they go, the first ranks get one more.
struct UnitRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
UnitRange units_of_rank(std::int64_t units, Rank rank, int size);

class PackageFolder;

/// An open package: manifest and graph are read and checked, weights are read on demand. Thread-compatible.
class Package {
 public:
  /// Reads manifest, graph and the headers of the weight files, and holds them against each other: parameters, and the
  /// shardings against what the rules give. kNotFound if there
  /// is no package, kCorrupt (names the file and what is wrong), kUnsupported (another format version, an unknown op).
  static Result<Package> open(const std::string& path);
  Package(Package&&) = default;
  Package& operator=(Package&&) = default;

  const Manifest& manifest() const { return manifest_; }
  const Graph& graph() const { return graph_; }
  const std::string& path() const { return path_; }
  /// kNotFound if there is none of that name.
  Result<const TensorEntry*> tensor(std::string_view name) const;

  /// Reads granules [first, first + count) of `tensor` into `destination` (of exactly their bytes) and checks each
  /// against its hash; kCorrupt names file, tensor, granule and byte range. Reads nothing else.
  Status read_granules(const TensorEntry& tensor, std::uint64_t first, std::uint64_t count,
                       std::span<std::byte> destination);

  /// Bytes read so far, of manifest and graph, and of weights.
  std::uint64_t metadata_bytes_read() const { return metadata_bytes_read_; }
  std::uint64_t weight_bytes_read() const { return weight_bytes_read_; }

 private:
  struct WeightFile;
  Package() = default;
  static Result<Package> read(const PackageFolder& folder);
  std::string path_;
  Manifest manifest_;
  TensorsByName tensors_;
  Graph graph_;
  std::vector<std::shared_ptr<WeightFile>> files_;
  std::uint64_t metadata_bytes_read_ = 0;
  std::uint64_t weight_bytes_read_ = 0;
};

}  // namespace accord::engine
